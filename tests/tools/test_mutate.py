from pathlib import Path

from child import python

ROOT = Path(__file__).parents[2]


def test_it_says_of_each_change_whether_a_test_fails():
    place = "eh_gym/wrappers/elastic_time_limit.py"
    said = python("tools/mutate.py", place, "-n", "2", "--", "-n", "0", cwd=ROOT).splitlines()
    assert said[-1].startswith(("1 of 2 noticed", "2 of 2 noticed"))
    assert [line.split()[0] for line in said[:-1]] == ["1", "2"]
    assert any("killed" in line and " -> " in line and "::test_" in line for line in said)
