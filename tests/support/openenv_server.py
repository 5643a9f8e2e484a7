"""The server of `python -m envs serve` in a thread of the test's process, which saves the start of another one."""

import socket
import threading
from contextlib import contextmanager

TOKEN = "a-token-for-this-test-alone"


@contextmanager
def served_here(env_id, splits=("train",), sessions=8, idle_s=900.0):
    from envs.openenv.server import make_app, make_server

    server = make_server(make_app(env_id, args={}, splits=splits, sessions=sessions, idle_s=idle_s, token=TOKEN))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield {"url": f"http://127.0.0.1:{listening.getsockname()[1]}", "token": TOKEN, "timeout_s": 120.0}
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()
