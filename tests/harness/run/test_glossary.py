"""The glossary is complete, and its table can be read."""

from harness.run import glossary
from harness.run.glossary import GLOSSARY


def test_no_name_stands_twice():
    assert len(GLOSSARY) == len(glossary._ALL)


def test_every_entry_is_complete():
    for name, metric in GLOSSARY.items():
        group, _, rest = name.partition("/")
        assert group in {"horizon", "rollout", "tokens", "train", "evaluation", "time", "warm_start"}, name
        assert rest.isidentifier(), name
        assert metric.unit, name
        assert metric.formula, name
