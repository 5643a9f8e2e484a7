import pytest
from rich.console import Console

from harness.evaluation.run import run
from harness.settings.evaluate import EvaluateConfig
from harness.settings.section import changed
from harness.terminal.shown import ShownEpisodes
from harness.types.trajectory import Trajectory, Turn


@pytest.mark.parametrize("player", ["script", "model", "endpoint", "agent"])
def test_the_first_episode_of_every_player_is_printed_with_the_steps_that_are_left(
    player, trained, chat_server, tmp_path, capsys
):
    own = {"tasks": 2}
    if player == "model":
        trained.save(tmp_path)
        own |= {"policy": str(tmp_path)}
    if player == "agent":
        (tmp_path / "tasks").write_text('{"id": "train-000000"}\n{"id": "train-000001"}')
        own |= {"agent": "cabinet_agent:play", "tasks": tmp_path / "tasks"}
    with chat_server.serve(lambda request, _: {"body": chat_server.completion(request, "read()")}) as server:
        if player in ("endpoint", "agent"):
            own |= {"policy": "openai", "base_url": server.url, "model": "m"}
        run(changed(EvaluateConfig(), split="train", rollouts=1, horizon=2, show=1, **own), Console())
    lines = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("task", "step ", "> ", "stopped by K:"))
    ]
    lines = [line[:2] if line[0] == ">" else line for line in lines]
    end = "stopped by K: no success, reward 0"
    assert lines == ["task train-000000, K = 2", "step 1, 1 left", "> ", "step 2, 0 left", "> ", end]


def test_episodes_follow_each_other_and_hold_nothing_that_moves_the_cursor(capsys):
    shown = ShownEpisodes(Console(width=200), [1, 2])
    lost, first, second, third = (Trajectory(f"t{n}", 0, 9, n, info={"task_id": n}) for n in (1, 1, 2, 3))
    first.success, first.prompt = True, "[b]\x1b[2J \udc80" + 2000 * "x"
    second.turns.append(Turn("late"))
    shown.went_on(lost)
    for t in (second, third, first):
        shown.ended(t)
    out = capsys.readouterr().out
    expected = ["task t1, K = 9\n", "t1, K = 9\n[b] [2J  x", "(509 more characters)", "rules: success"]
    places = [out.index(text) for text in [*expected, "task t2", "> late\n", "rules: no success"]]
    assert places == sorted(places)
    assert "t3" not in out
