"""Escapes halves of surrogate pairs, which Python's strings may contain but UTF-8 and tokenizers refuse."""


def escaped(text: str) -> str:
    r"""The text with halves of surrogate pairs escaped.

    >>> escaped("a" + chr(0xD83D)), escaped("a\U0001f600") == "a\U0001f600"
    ('a\\ud83d', True)
    """
    return text.encode("utf-8", "backslashreplace").decode()
