"""The glossary is complete, and its table can be read."""

from harness.run import glossary
from harness.run.glossary import GLOSSARY, glossary_markdown


def test_no_name_stands_twice():
    assert len(GLOSSARY) == len(glossary._ALL)


def test_every_entry_is_complete():
    for name, metric in GLOSSARY.items():
        group, _, rest = name.partition("/")
        assert group in {"horizon", "rollout", "tokens", "train", "evaluation", "time", "warm_start"}, name
        assert rest.isidentifier(), name
        assert metric.unit, name
        assert metric.formula, name


def test_markdown_has_one_row_of_three_cells_a_metric():
    head, rule, *rows = glossary_markdown().split("\n")
    assert head == "| metric | unit | what it is |"
    assert rule == "| --- | --- | --- |"
    assert [row.split("`")[1] for row in rows] == list(GLOSSARY)
    # A | inside a formula would open a fourth cell; GitHub takes \| for the character.
    assert {row.replace("\\|", "").count("|") for row in rows} == {4}
    assert any("\\|" in row for row in rows)
