"""vLLM's server in a process of its own, as docs/vllm.md starts it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from harness.sampling.vllm.settings import FLOAT32_LOGITS


class Server:
    def __init__(self, model, log, *words, **settings):
        self._log, self._settings = log, {**os.environ, "VLLM_SERVER_DEV_MODE": "1", **settings}
        # Bound and not listening, it keeps the port for the server, also while that is down, and from everybody else.
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", 0))
        port = self._kept.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        # As `vllm serve` does; that command needs the name of the GPU package.
        self._command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        self._command += ["--host", "127.0.0.1", "--port", str(port), "--hf-overrides", json.dumps(FLOAT32_LOGITS)]
        self._command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-scale-out"]
        self._command += words
        self.start()

    def start(self):
        with self._log.open("ab") as log:
            how = {"stdout": log, "stderr": subprocess.STDOUT, "env": self._settings, "start_new_session": True}
            self._process = subprocess.Popen(self._command, **how)

    def wait(self, timeout_s=600):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"the server ended:\n{self._log.read_text()[-4000:]}"
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.3)
        raise AssertionError(f"the server did not come up:\n{self._log.read_text()[-4000:]}")

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
        self._kept.close()

    def hold(self):
        os.killpg(self._process.pid, signal.SIGSTOP)

    def kill(self):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
