"""Install, check and list the environments, or serve one to other programs and machines.

Only ``install`` downloads anything. Importing or making an environment never installs its backend.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from eh_gym.errors import EHError, MissingBackendError
from envs import backends, check, serve
from envs.appworld import install as appworld
from envs.bfcl import splits as bfcl
from envs.cabinet.tasks import task_ids as cabinet_task_ids
from envs.cache import cache_dir


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status, which is 0 if all is well."""
    parser = argparse.ArgumentParser(prog="python -m envs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    names = ", ".join(backends.BACKENDS)
    add = commands.add_parser("install", help="build a backend's virtualenv in the user's cache")
    add.add_argument("backends", nargs="+", metavar="BACKEND", help=f"{names}, or all")
    add.add_argument(
        "--force", action="store_true", help="build it again even if it is there; AppWorld's benchmark is kept"
    )
    add.add_argument("--no-data", action="store_true", help="do not try to download AppWorld's benchmark")
    add.set_defaults(run=_install)
    add = commands.add_parser("doctor", help="show what is installed, what is missing, and how to fix it")
    add.add_argument("backends", nargs="*", metavar="BACKEND", help=f"{names}; default: all of them")
    add.set_defaults(run=_doctor)
    add = commands.add_parser("list", help="list the environments, their tasks and their backends")
    add.set_defaults(run=_list)
    add = commands.add_parser("check", help="say what the harness needs of an environment, and what is missing")
    check.add_arguments(add)
    add.set_defaults(run=check.check)
    add = commands.add_parser("serve", help="serve an environment with OpenEnv's protocol")
    serve.add_arguments(add)
    add.set_defaults(run=serve.serve)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except EHError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as of `list | head`; Python would complain again when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _chosen(names: Sequence[str]) -> list[str]:
    chosen = list(backends.BACKENDS) if not names or "all" in names else list(dict.fromkeys(names))
    for name in chosen:
        backends.get_backend(name)
    return chosen


def _install(options: argparse.Namespace) -> int:
    for name in _chosen(options.backends):
        if name == "appworld":
            appworld.install(force=options.force, benchmark=not options.no_data)
        else:
            backends.install(name, force=options.force)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    print(
        f"python     {'.'.join(map(str, sys.version_info[:3]))}, numpy {version('numpy')}, gymnasium "
        f"{version('gymnasium')}"
    )
    print(f"cache      {cache_dir()}")
    bad = 0
    for name in _chosen(options.backends):
        try:
            python = backends.backend_python(name)
        except MissingBackendError as error:
            bad += 1
            print(f"{name:<10} MISSING: {error}")
            continue
        print(f"{name:<10} ok: {backends.pins(backends.get_backend(name))}")
        if name == "appworld":
            mini, lines = appworld.report()
            bad += not mini
            for line in [*lines, *appworld.isolation(python)]:
                print(f"{'':<10} {line}")
    return 1 if bad else 0


def _list(_: argparse.Namespace) -> int:
    cabinet = ", ".join(f"{split} {len(cabinet_task_ids(split)):,}" for split in ("train", "dev", "test"))
    tasks = ", ".join(f"{split} {len(bfcl.task_ids(split)):,}" for split in ("train", "dev", "test", "all"))
    worlds = ", ".join(f"{split} {count or '-'}" for split, count in appworld.counts().items())
    rows = [
        ("EH-Cabinet-v0", cabinet, "built in"),
        ("EH-CabinetLocked-v0", cabinet, "built in"),
        ("EH-CabinetOpenEnded-v0", cabinet, "built in"),
        ("EH-BFCL-v0", tasks, _state("bfcl")),
        ("EH-AppWorld-v0", worlds, _state("appworld")),
    ]
    for row in rows:
        print(*row, sep="\n    ")
    return 0


def _state(backend: str) -> str:
    try:
        backends.backend_python(backend)
    except MissingBackendError:
        return f"not installed; run: python -m envs install {backend}"
    return f"backend {backend} installed ({backends.pins(backends.get_backend(backend))})"


if __name__ == "__main__":
    raise SystemExit(main())
