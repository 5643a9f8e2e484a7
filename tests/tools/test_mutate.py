import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_says_of_each_change_whether_a_test_fails():
    words = [sys.executable, "tools/mutate.py", "eh_gym/wrappers/elastic_time_limit.py", "-n", "2", "--", "-n", "0"]
    said = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    assert said[-1].startswith(("1 of 2 noticed", "2 of 2 noticed"))
    assert [line.split()[0] for line in said[:-1]] == ["1", "2"]
    assert any("killed" in line and " -> " in line and "::test_" in line for line in said)
