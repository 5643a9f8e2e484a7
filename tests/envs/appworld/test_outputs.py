"""What is played again of a recorded episode; test_export.py has the outputs themselves."""

from pathlib import Path

from envs.appworld.outputs import OutputWriter


class World:
    """Remembers what was run."""

    calls, host_failed = (), False

    def __init__(self):
        self.ran = []

    def execute(self, code):
        self.ran.append(code)
        return {"output": "2\n", "completed": True}

    def verdict(self):
        return {"success": True}

    def close(self):
        pass


class Worker:
    """Remembers the turns that were written."""

    def call(self, method, params, timeout_s):
        self.turns = params["turns"]


def test_messages_that_the_environment_refused_are_not_run():
    world, worker = World(), Worker()
    host = type("Host", (), {"open": lambda self, task_id: world})()
    long = "print(1)\n#" + "x" * 200_000
    writer = OutputWriter(Path("root"), "agent", host, worker)
    writer.write("a_1", [long, "print(2)"])
    assert world.ran == ["print(2)"]
    assert worker.turns == [
        (long, "Not run: 200,010 characters of code; at most 200,000 are allowed."),
        ("print(2)", "2\n"),
    ]
