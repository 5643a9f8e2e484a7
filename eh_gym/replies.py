"""Splits a model's raw reply into its thought and its answer."""

THINK = ("<think>", "</think>")


def split_reply(reply: str, tags: tuple[str, str] = THINK) -> tuple[str, str]:
    r"""The thought of a reply without its tags, and the answer, on which environments act.

    The thought ends at the last closing tag. Its opening tag may be missing, because many chat templates write it.
    A thought that is not closed has no answer. A reply without a thought is the answer, unchanged.

    >>> split_reply("<think>\nThe note is in c.\n</think>\n\nopen(c)")
    ('The note is in c.', 'open(c)')
    >>> split_reply("open(c)")
    ('', 'open(c)')
    >>> split_reply("<think>Should I call open(c)?")
    ('Should I call open(c)?', '')
    """
    thought, closed, answer = reply.rpartition(tags[1])
    if not closed:
        if not reply.lstrip().startswith(tags[0]):
            return "", reply
        thought, answer = reply, ""
    return thought.strip().removeprefix(tags[0]).strip(), answer.lstrip("\n")
