"""Install, check and list the environments, or serve one to other programs and machines.

Only ``install`` downloads anything. Importing or making an environment never installs its backend.
"""

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from typing import Any

import eh_gym
from eh_gym.errors import EHError, MissingBackendError
from envs import backends, check, serve
from envs.cache import cache_dir
from envs.description import Backend, descriptions

_SHOWN = ("elastic-horizon", "numpy", "gymnasium", "torch", "transformers", "peft", "vllm", "trl")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m envs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    names = ", ".join(backends.all_backends())
    add = commands.add_parser("install", help="build a backend's virtualenv in the user's cache")
    add.add_argument("backends", nargs="+", metavar="BACKEND", help=f"{names}, or all")
    add.add_argument(
        "--force", action="store_true", help="build it again even if it is there; downloaded data are kept"
    )
    add.add_argument("--no-data", action="store_true", help="do not try to download a benchmark's data")
    add.set_defaults(run=_install)
    add = commands.add_parser("doctor", help="show the versions, what is missing, and how to fix it")
    add.add_argument("backends", nargs="*", metavar="BACKEND", help=f"{names}; default: all of them")
    add.set_defaults(run=_doctor)
    add = commands.add_parser(
        "list", help="list the environments, with their tasks, recipes, official settings and backends"
    )
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


def _chosen(names: Sequence[str]) -> list[Backend]:
    every = not names or "all" in names
    return [backends.get_backend(name) for name in (backends.all_backends() if every else dict.fromkeys(names))]


def _installer(backend: Backend) -> Any:
    return importlib.import_module(backend.installer)


def _install(options: argparse.Namespace) -> int:
    def install(backend: Backend) -> None:
        if backend.installer:
            _installer(backend).install(force=options.force, benchmark=not options.no_data)
        else:
            backends.install(backend.name, force=options.force)

    with ThreadPoolExecutor() as pool:
        list(pool.map(install, _chosen(options.backends)))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    installed = {package.name: package.version for package in distributions()}
    installed["elastic-horizon"] = eh_gym.__version__
    versions = [f"{name} {installed[name]}" for name in _SHOWN if name in installed]
    print(f"python     {platform.python_version()}, {', '.join(versions)}; {platform.platform()}")
    print(f"cache      {cache_dir()}")
    whole = True
    for backend in _chosen(options.backends):
        try:
            python = backends.backend_python(backend.name)
        except MissingBackendError as error:
            whole = False
            print(f"{backend.name:<10} MISSING: {error}")
            continue
        print(f"{backend.name:<10} ok: {backends.pins(backend)}")
        if backend.installer:
            data, lines = _installer(backend).report(python)
            whole = whole and data
            for line in lines:
                print(f"{'':<10} {line}")
    return 0 if whole else 1


def _list(_: argparse.Namespace) -> int:
    for env_id, about in descriptions().items():
        print(env_id)
        print(
            "   ", ", ".join(f"{split} {count:,}" if count else f"{split} -" for split, count in about.counts().items())
        )
        if about.official:
            print("    --official:", ", ".join(f"{name} {value}" for name, value in about.official.items()))
        if about.scripts:
            print("    --policy", ", ".join(about.scripts))
        if about.recipe:
            print("    --recipe", about.recipe)
        print("   ", _state(about.backend) if about.backend else "built in")
    return 0


def _state(backend: Backend) -> str:
    try:
        backends.backend_python(backend.name)
    except MissingBackendError:
        return f"not installed; run: python -m envs install {backend.name}"
    return f"backend {backend.name} installed ({backends.pins(backend)})"


if __name__ == "__main__":
    raise SystemExit(main())
