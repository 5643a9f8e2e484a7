"""``python -m envs check ID``: runs the tests of `eh_gym.testing` on an environment."""

import argparse
import re
import warnings

import gymnasium as gym

from eh_gym.checked import said_by
from eh_gym.errors import EHError
from eh_gym.testing import ExpertEnvContract, TextEnvContract
from envs.make import json_object, make_environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("env", metavar="ENV_ID", help="an id of gymnasium, MODULE:ID, or FILE.py:CLASS")
    parser.add_argument("--split", default="train", help="the split whose tasks are played (%(default)s)")
    parser.add_argument(
        "--env-args", default="{}", help="what the environment takes, as JSON, but the split (%(default)s)"
    )
    parser.add_argument(
        "--success-threshold",
        type=float,
        default=1.0,
        help="the least sum of rewards that is a success, if there is no info['success'] (%(default)s)",
    )


def check(options: argparse.Namespace) -> int:
    args = {**json_object(options.env_args, "--env-args"), "split": options.split}

    def make() -> gym.Env[str, str]:
        return make_environment(options.env, args)

    env = make()
    lacking = [name for name in ("expert", "random_action") if not hasattr(env.unwrapped, name)]
    env.close()
    base = TextEnvContract if lacking else ExpertEnvContract
    members = {"make": staticmethod(make), "success_threshold": options.success_threshold}
    contract = type("Contract", (base,), members)()
    faults: dict[str, str] = {}
    names = (name for kind in reversed(base.__mro__) for name in vars(kind) if name.startswith("test_"))
    for name in names:
        fault, title = _fault_of(contract, name), name.removeprefix("test_").replace("_", " ")
        print(f"{'wrong' if fault else 'ok':<6} {title}")
        if fault:
            print(f"       {faults.setdefault(fault, fault)}")
            faults[fault] = f"as in: {title}"
    if lacking:
        print(f"note   no {' and no '.join(lacking)}: no episode was played out; the harness checks each verdict")
    if faults:
        print("docs/extend/environment.md says what the harness needs, with an example")
        return 1
    return 0


def _fault_of(contract: TextEnvContract, name: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a test that asks gymnasium for warnings makes errors of them
            getattr(contract, name)()
        return ""
    except (AssertionError, Warning, EHError) as error:
        return _one_line(f"{error}")
    except Exception as error:
        return _one_line(said_by(error))
    finally:
        try:
            contract.teardown_method()
        except Exception:  # the test of close() has said it
            contract._made = ()


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"\x1b\[\d*m", "", text).split())[:600]
