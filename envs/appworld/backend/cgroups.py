"""What this process's container allows it: processors and memory. Also imported in the user's Python."""

import contextlib
import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path

_MOUNT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@functools.cache
def processors() -> int:
    """Those of the affinity, but no more than a quota of processor time is worth, rounded up as by joblib."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = _numbers("cpu", ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    return min([count, *(math.ceil(quota / period) for quota, period in quotas)])


def memory_bytes() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for (limit,) in _numbers("memory", ("memory.max",), ("memory.limit_in_bytes",)))])


def _numbers(controller: str, *files: tuple[str, ...]) -> Iterator[list[int]]:
    """The numbers in such files of all cgroups that this process is in, of version 2 or 1."""
    with contextlib.suppress(OSError):
        for line in _OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                folder = (_MOUNT / controller if controllers else _MOUNT) / path.lstrip("/")
                for cgroup in (folder, *folder.parents):
                    for names in files:
                        with contextlib.suppress(OSError, ValueError):  # no such file, or no limit: "max"
                            numbers = [int(n) for name in names for n in (cgroup / name).read_text().split()]
                            if numbers[0] > 0:  # -1 is no limit, too
                                yield numbers
