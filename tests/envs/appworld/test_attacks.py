"""Every attack, against the real environment: no reward, no harm to the next episode, an end within its deadline.

The first and the last attack of each kind are always made, the others in the campaign.
"""

import os
import platform
import re
import runpy
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from envs.appworld import hosts, turns

attacks = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("attacks.py"))))
SLACK_S = 20.0  # for the verdict, the kill, and a busy machine
ALWAYS = {a.name for each in (attacks.ATTACKS, attacks.ATTACKS[::-1]) for a in {a.kind: a for a in each}.values()}
HAS_SECCOMP = os.path.exists("/proc/sys/kernel/seccomp") and platform.machine() in ("x86_64", "aarch64")
pytestmark = pytest.mark.skipif(not HAS_SECCOMP, reason="without a system-call filter, much of it would come through")


@pytest.fixture(scope="module")
def target(appworld_python):
    """An environment whose zygotes have a folder for temporary files, and are ended, of their own."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("TMPDIR", folder)
        patch.setenv("EH_TOKEN_OF_THE_TRAINER", "secret")
        patch.setattr(tempfile, "tempdir", folder)
        target = attacks.Target()
        yield target
        end(target)


def end(target):
    target.env.close()
    for key in [key for key, host in hosts._hosts.items() if host is target.env._host]:
        hosts._hosts.pop(key).close()


def traces(target):
    host = target.env._host
    zygotes = [psutil.Process(pid) for pid in host.pids]
    files = sorted(str(path) for path in Path(tempfile.gettempdir()).rglob("*"))
    return host.pids, [p.pid for zygote in zygotes for p in zygote.children(recursive=True)], files


@pytest.fixture(scope="module")
def played(target, request):
    """Name -> outcome of the attacks that were chosen, and what the host left behind before and after them."""
    chosen = {
        item.callspec.params["name"] for item in request.session.items if item.path == request.path and is_attack(item)
    }
    target.reference("question")
    target.env.close()
    before = traces(target)
    outcomes = attacks.play([attack for attack in attacks.ATTACKS if attack.name in chosen], slots=6)
    return {outcome.attack.name: outcome for outcome in outcomes}, before, traces(target)


def is_attack(item):
    return item.originalname == "test_attack"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(attack.name, marks=() if attack.name in ALWAYS else pytest.mark.campaign)
        for attack in attacks.ATTACKS
    ],
)
def test_attack(played, name):
    outcome = played[0][name]
    attack = outcome.attack
    said = "\n".join(outcome.said[1:])
    assert outcome.reward == 0
    assert not outcome.info.get("success")
    assert outcome.ended in re.split(", | or ", attack.ends), said[-2000:]
    assert re.search(attack.shows, said, re.DOTALL), said[-2000:]
    # On a busy machine a step is given what it lost to others.
    assert outcome.slowest_s < (2 + turns._MOST_LOST) * attacks.STEP_TIMEOUT_S + SLACK_S
    assert outcome.healed is not False, "the next episode was another than before"
    assert outcome.healed or outcome.ended == "verdict"


def test_the_host_is_as_it_was(played):
    _, before, after = played
    assert after == before
    assert len(after[1]) == 2  # each zygote has a process that watches the trainer
    assert not os.path.exists("/tmp/owned")


@pytest.mark.campaign
def test_attacks_find_the_answer_where_nothing_is_in_their_way(target):
    bare = attacks.Target(confined=False)
    try:
        for name in ("read the answer by its path", "have the engine load the ground truth"):
            outcome = bare.play(next(attack for attack in attacks.ATTACKS if attack.name == name))
            assert (outcome.reward, outcome.ended) == (1.0, "verdict")
    finally:
        end(bare)
