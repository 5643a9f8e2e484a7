"""What the reader processes of test_shared.py do; importable by name under every start method."""

import os

from eh_gym.errors import ConfigError
from eh_gym.horizon import EpisodeOutcome


def outcome(writer, i):
    # Long task ids, so that lines fall over page boundaries soon.
    return EpisodeOutcome(
        length=i % 50 + 1, horizon=50, success=i % 3 > 0, truncated=i % 3 == 0, task_id=f"{writer}/{i}"
    )


def record(shared, writer, count):
    for i in range(count):
        shared.record(outcome(writer, i))


def record_until_killed(shared, writer, connection):
    i = 0
    while True:
        shared.record(outcome(writer, i))
        connection.send_bytes(i.to_bytes(4, "little"))
        i += 1


def watch(shared, connection, looks):
    seen = set()
    connection.send("looking")
    for _ in range(looks):
        seen.add(shared.horizon)
    while len(seen) < 2:
        seen.add(shared.horizon)
    connection.send(seen)


def try_to_own(shared, connection):
    errors = []
    for call in (shared.update, shared.state_dict, lambda: shared.load_state_dict({})):
        try:
            call()
        except ConfigError as error:
            errors.append(str(error))
    shared.close()
    connection.send((errors, os.getpid()))
