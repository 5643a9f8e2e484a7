"""The versions on which a run's results depend: Python, the platform, the processor and the packages."""

import platform
from functools import cache
from importlib.metadata import distributions


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache  # a sweep begins many runs
def package_versions() -> dict[str, str]:
    system = {"python": platform.python_version(), "platform": platform.platform(), "cpu": cpu_name()}
    packages = [package.metadata for package in distributions()]
    return system | {package["Name"]: package["Version"] for package in sorted(packages, key=lambda each: each["Name"])}
