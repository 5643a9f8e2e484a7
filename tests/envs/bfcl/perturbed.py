"""Scripts of messages that are the ground truth with random changes."""

import ast
import copy
import json

# Python's own functions are not among them: upstream runs them, and we refuse them (docs/bfcl.md).
NONSENSE = ["fly_to_moon", "exit", "kill", "remove", "os.remove", "GorillaFileSystem.ls", "_load_scenario"]
# Names that make upstream's text something else than a call.
NONSENSE += ["send-message", "functions.send-message", "cd-ls", "3-pwd", "", "pwd(), ls", "pwd() - ls", "ls().name"]
KINDS = ["drop", "double", "swap", "alter", "alter", "alter", "forget", "wrong", "nonsense", "extra", "extra", "empty"]
KINDS += ["move", "again", "spell"]
THOUGHTS = ["<think>a <tool_call>\n</think>\n", "[ls()]</think>\n\n", "<think>a</think>\r\n", "a</think>b</think>\n \n"]
CHATTER = ["I am not sure.", "[]", "", "ls(", "[ls()", "<tool_call>\n{broken}\n</tool_call>", "f(a=1", "{}", "[3]"]
CHATTER += ["None"]


def expert_calls(env, task_id):
    env.reset(options={"task_id": task_id})
    turns, done, info = [[]], False, {"turn": 0}
    while not done:
        action = env.unwrapped.expert()
        _, _, done, _, after = env.step(action)
        if after["calls"]:
            calls = ast.parse(action, mode="eval").body.elts
            turns[-1] += [(c.func.id, {k.arg: ast.literal_eval(k.value) for k in c.keywords}) for c in calls]
        elif not done:
            turns.append([])
        info = after
    assert info["success"], task_id
    return turns


def perturb(rng, turns, functions):
    turns = copy.deepcopy(turns)
    names = [document["name"] for document in functions]
    free = [d["name"] for d in functions if not d["parameters"].get("required")]
    everything = [call for turn in turns for call in turn]
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        turn = rng.choice(turns)
        other = rng.choice(turns)
        at = rng.randrange(len(turn)) if turn else None
        kind = rng.choice(KINDS)
        if kind == "extra" and free:
            turn.insert(rng.randint(0, len(turn)), (rng.choice(free), {}))
        elif kind == "again" and everything:
            turn.insert(rng.randint(0, len(turn)), rng.choice(everything))
        elif kind == "nonsense":
            turn.insert(rng.randint(0, len(turn)), (rng.choice(NONSENSE), rng.choice([{}, {"a": 1}])))
        elif kind == "empty" and rng.random() < 0.3:
            turn.clear()
        elif at is None:
            continue
        elif kind == "drop":
            del turn[at]
        elif kind == "double":
            turn.insert(at, turn[at])
        elif kind == "swap" and len(turn) > 1:
            turn[at - 1], turn[at] = turn[at], turn[at - 1]
        elif kind == "move":
            other.append(turn.pop(at))
        elif kind == "wrong":
            turn[at] = (rng.choice(names), turn[at][1])
        elif kind == "spell":
            turn[at] = rng.choice(list(spellings(*turn[at]).values()))
        elif kind in ("alter", "forget") and turn[at][1]:
            name, arguments = turn[at]
            arguments = dict(arguments)
            key = rng.choice(list(arguments))
            if kind == "forget":
                del arguments[key]
            else:
                arguments[key] = alter(rng, arguments[key])
            turn[at] = (name, arguments)
    script = []
    for turn in turns:
        steps, rest = [], list(turn)
        several = rng.random() < 0.3
        while rest:
            size = rng.randint(1, 4) if several else 1
            steps.append(rest[:size])
            rest = rest[size:]
        if rng.random() < 0.05:
            steps.insert(rng.randint(0, len(steps)), rng.choice(CHATTER))  # ends the turn early
        if free and rng.random() < 0.03:
            steps[rng.randint(0, len(steps)) :] = [[(rng.choice(free), {})] for _ in range(rng.randint(17, 23))]
        script.append(steps)
    return script


def perturbed_task(rng, env, upstream, task_id):
    """A task's ground truth with random changes, and its functions."""
    functions = upstream.call("entry", {"task_id": task_id})["functions"]
    return perturb(rng, expert_calls(env, task_id), functions), functions


def spellings(name, arguments):
    """The call in spellings whose source text Python or upstream's rewriting may read in another way: {what: call}."""
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in name)
    bold = "".join(
        chr(0x1D41A + ord(letter) - ord("a")) if letter.isalpha() and letter.islower() else letter for letter in name
    )
    first, value = next(iter(arguments.items()), ("a", 1))
    rest = {k: v for k, v in arguments.items() if k != first}
    wide_first = chr(ord(first[0]) + 0xFEE0) + first[1:]
    return {
        "a name in brackets": (f"({name})", arguments),
        "a name in two brackets": (f"(({name}))", arguments),
        "a name in full-width letters": (wide, arguments),
        "a name with one full-width letter": (name[:-1] + wide[-1], arguments),
        "a name in bold letters": (bold, arguments),
        "a backslash behind the name": (f"{name} \\\n", arguments),
        "a comment behind the name": (f"{name}#\n", arguments),
        "an instance in front": (f"_inst.{name}", arguments),
        "an instance in brackets": (f"(_inst.{name})", arguments),
        "an instance in full-width letters and brackets": (f"(_\uff49nst.{name})", arguments),
        "a method of the name": (f"{name}.__call__", arguments),
        "a middle dot in front": (f"a\u00b7{name}", arguments),
        "a keyword twice": (name, {f"{first}={value!r}, {first}": value, **rest}),
        "a keyword in two spellings": (name, {first: value, wide_first: value, **rest}),
        "__debug__": (name, {**arguments, "__debug__": 1}),
        # These are calls, for upstream too.
        "a blank, a tab and a line behind the name": (f"{name} \t\n", arguments),
        "a no-break space behind the name": (f"{name}\u00a0", arguments),
        "blanks in front": (f" \t{name}", arguments),
        "a keyword in full-width letters": (name, {wide_first: value, **rest}),
    }


def alter(rng, value):
    if isinstance(value, bool):
        return rng.choice([not value, None, "yes"])
    if isinstance(value, (int, float)):
        return rng.choice([value + 1, -value, value / 2, str(value), 0, [value]])
    if isinstance(value, str):
        return rng.choice([value + "x", value.upper(), "", value[:-1], value + " (draft)", 'it\'s "q" \\ é\n', 5, None])
    if isinstance(value, list) and value:
        return rng.choice([value[::-1], value[:-1], value + value[:1], [], value[0]])
    return rng.choice([None, [], {"a": 1}])


def rendered(rng, turns, action_format):
    return [[render(rng, step, action_format) for step in turn] for turn in turns]


def render(rng, step, action_format):
    if isinstance(step, str):  # {} would be a message without words, not these words
        return "None" if (action_format, step) == ("native", "{}") else step
    if action_format == "native":
        calls = [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in step]
        if rng.random() < 0.05:
            calls[-1]["function"]["arguments"] = rng.choice(["{", "[1]", "", "null", '"a"'])
        return json.dumps({"content": None, "tool_calls": calls})
    if action_format == "hermes":
        blocks = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in step]
        text = "\n".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)
        return rng.choice(["", "", "", *THOUGHTS, "Sure.\n"]) + text
    calls = [f"{name}({', '.join(f'{k}={written(rng, v)}' for k, v in arguments.items())})" for name, arguments in step]
    if rng.random() < 0.05:
        calls[0] = calls[0].replace("(", "('positional', ", 1).replace(", )", ")")
    brackets = rng.choice(["[{}]", "[{}]", "[{}]", "{}", "```{}```", " [{}]\n"])
    return rng.choice(["", "", "", *THOUGHTS]) + brackets.format(", ".join(calls))


def written(rng, value):
    """The source of a value, in one of five arithmetic that has it, up to the depth that we allow, or nearly has it."""
    forms = []
    if isinstance(value, str):
        forms = ["{0!r} + ''", "'' + ('' + {0!r})", "{0!r} * 1", "2 * {0!r}"]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        forms = ["{0!r} + 0", "3 * {0!r} - 2 * ({0!r})", "({0!r} + 7) % 5", "(7 - {0!r}) / 2", "{0!r} ** 1 // 1"]
        forms += ["+{0!r}", "{0!r}" + " - 0" * 20, "1j * {0!r}", "2 ** 5 - {0!r}"]
    elif isinstance(value, list):
        forms = ["tuple_ + {0!r}", "({0!r},)", "{0!r}[0]", "...", "{{**{0!r}}}"]
    return rng.choice(forms).format(value) if forms and rng.random() < 0.2 else repr(value)


def aliasing_can_matter(task_id, functions):
    names = {document["name"] for document in functions}
    return "post_tweet" in names or ("long_context" in task_id and "book_flight" in names)
