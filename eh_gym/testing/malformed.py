"""Texts that are not valid actions in any environment of this project."""

MALFORMED: tuple[str, ...] = (
    *("", " ", "\n\n", "None", "null", "nan", "[]", "{}", "()", "[[[[", "]]]]", "f(", "f(a=", "f(a=1"),
    *("[f(a=1)", "f(a=1))"),
    *("\0", "\x1b[2J\x07\x08\x7f", "\r\n\t\v\f", "\ud800", "\ufeff", "\u202etxet", "naïve 🧭 中文", "ｏｐｅｎ（ａ）"),
    "🤷" * 50,
    *("x" * 100_000, "(" * 100_000, "[" * 100_000, "a(" * 50_000, "9" * 100_000, "-" * 5_000 + "1"),
    "\n" * 100_000,
    *("<tool_call>", "<tool_call>{</tool_call>", '<tool_call>{"name": 3}</tool_call>'),
    "<tool_call></tool_call>" * 500,
    *("__import__('os').system('true')", "[exit()]", "[eval('1')]", "[f(**{})]", "[f(*x)]", "[f(lambda: 0)]"),
    "[9**9**9]",
    *("%s %n", "'; DROP TABLE tasks; --", "${HOME}", "{0.__class__}", '{"a": 1e999}', "\\", "'", '"', '"""'),
    *("#", "f(a=b'x')"),
)
