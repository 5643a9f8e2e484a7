"""AppWorld's form of evaluation code: what every task checks, around what a generator checks.

``evaluate(test, public_data, private_data, main_user, models, ground_truth_answer)`` compares the world at the start with
the world at the end. Every task checks its answer (none counts as an answer too) and the set of models that changed.
"""

from __future__ import annotations

from textwrap import dedent, indent

__all__ = ["evaluation"]

_HEAD = '''import json


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    predicted_answer = json.loads(models.end.supervisor.Task.first().answer)

    with test("""assert the answer matches the ground truth answer."""):
        test.answer(predicted_answer, ground_truth_answer)

'''
_NOTHING = '''    with test("""assert no models have changed."""):
        test.case(models.changed_model_names(), "==", set())
'''
_ONLY = '''    with test("""assert only these models have changed: {names}."""):
        test.case(models.changed_model_names(), "==", {{{quoted}}})

'''


def evaluation(*changed: str, body: str = "") -> str:
    """The code of a task's evaluation.

    Args:
        *changed: The models that must have changed, as "venmo.Transaction"; no other may.
        body: More tests, at indentation 0 (or any common one): they see ``models``, ``main_user``, ``public_data``,
            ``private_data``.
    """
    if not changed:
        assert not body
        return _HEAD + _NOTHING
    names = ", ".join(changed)
    return (
        _HEAD
        + _ONLY.format(names=names, quoted=", ".join(f'"{name}"' for name in changed))
        + indent(dedent(body).strip("\n"), "    ")
        + "\n"
    )
