"""Splits a model's raw reply into its thought and its answer."""


def split_reply(reply: str) -> tuple[str, str]:
    r"""The thought and the answer of a reply. Environments act on the answer.

    The thought ends at the last closing tag. Its opening tag may be missing, because many chat templates write it
    themselves. If a reply begins with a thought and never closes it, there is no answer.

    Returns:
        The thought without its tags, and the answer without the newlines before it. A reply without a thought is its
        own answer, unchanged.

    >>> split_reply("<think>\nThe note is in c.\n</think>\n\nopen(c)")
    ('The note is in c.', 'open(c)')
    >>> split_reply("open(c)")
    ('', 'open(c)')
    >>> split_reply("<think>Should I call open(c)?")
    ('Should I call open(c)?', '')
    """
    thought, closed, answer = reply.rpartition("</think>")
    if not closed:
        if not reply.lstrip().startswith("<think>"):
            return "", reply
        thought, answer = reply, ""
    return thought.strip().removeprefix("<think>").strip(), answer.lstrip("\n")
