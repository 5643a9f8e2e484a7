"""harness.export: episodes as a benchmark's files. tests/envs has their contents, and the benchmarks' own verdicts."""

import json

import pytest
from rich.console import Console

from harness.evaluation.run import run
from harness.export.__main__ import main
from harness.settings.evaluate import EvaluateConfig
from harness.settings.section import changed

QUIET = Console(quiet=True)


@pytest.mark.usefixtures("bfcl_python")
def test_the_first_episode_of_each_task_is_written_and_the_command_is_said(tmp_path, capsys):
    args = json.dumps({"prompt": "official", "categories": ["miss_func"], "workers": 1})
    settings = {"env": "EH-BFCL-v0", "split": "all", "env_args": args, "horizon": 200}
    run(changed(EvaluateConfig(), **settings, policy="expert", tasks=2, rollouts=2, out=tmp_path / "kept"), QUIET)
    main(["bfcl", str(tmp_path / "kept"), "--out", str(tmp_path / "my files")])
    [file] = (tmp_path / "my files").rglob("BFCL_v4_multi_turn_miss_func_result.json")
    assert [json.loads(line)["id"][-6:] for line in file.read_text().splitlines()] == ["func_0", "func_1"]
    said = capsys.readouterr().out
    assert "2 entries, 798 missing" in said
    assert "bfcl evaluate --model Qwen/Qwen3-8B --test-category multi_turn --result-dir '/" in said


def test_a_wrong_folder_or_name_ends_with_one_line(tmp_path, capsys):
    kept = tmp_path / "kept"
    run(changed(EvaluateConfig(), policy="expert", tasks=1, out=kept), QUIET)
    for words, names in (
        (f"bfcl {tmp_path}", "holds no evaluation"),
        (f"bfcl {kept}", "EH-BFCL"),
        (f"appworld {kept} --name A", "lower-case"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([*words.split(), "--out", str(tmp_path / "x")])
        assert names in capsys.readouterr().out.replace("\n", " ")
