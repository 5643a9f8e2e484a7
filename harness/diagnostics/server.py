"""A vLLM server for the checks of the sampler that asks one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from eh_gym.errors import StateError
from harness.diagnostics.lab import Lab
from harness.run.runtime import visible_gpus
from harness.sampling.vllm_settings import FLOAT32_LOGITS

__all__ = ["server"]


@contextlib.contextmanager
def server(lab: Lab, model: Path, over_nccl: bool) -> Iterator[str]:
    """A vLLM server with this model's shape, as docs/vllm.md starts it; yields its address."""
    with socket.socket() as kept:  # bound and not listening, it keeps the port for the server
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        transfer = json.dumps({"backend": "nccl" if over_nccl else "file"})
        command = [
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(model),
            "--port",
            str(port),
        ]
        command += ["--host", "127.0.0.1", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
        command += ["--enable-scale-out", "--weight-transfer-config", transfer]
        command += ["--hf-overrides", json.dumps(FLOAT32_LOGITS)]
        command += ["--worker-extension-cls", "harness.sampling.vllm_worker.PolicyWeights"]
        settings = {"VLLM_SERVER_DEV_MODE": "1"}
        if lab.on_gpu:
            command += ["--gpu-memory-utilization", "0.3"]
            settings["CUDA_VISIBLE_DEVICES"] = visible_gpus()[-1]
        else:
            command += [
                "--dtype",
                "float32",
                "--enforce-eager",
                "--block-size",
                "32",
                "--kv-cache-memory-bytes",
                "67108864",
            ]
            command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096"]
            settings |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        process = subprocess.Popen(command, env={**os.environ, **settings})
        try:
            _wait_for(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    while True:  # the check's own time limit ends it
        if process.poll() is not None:
            raise StateError(f"the server ended with exit code {process.returncode}; its output is above")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.5)
