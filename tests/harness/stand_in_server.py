"""Stand-ins for vLLM servers, as far as the sampler asks: one whose tokens are its seeds, one with a model."""

import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from safetensors.torch import load_model

from harness.sampling.transformers import TransformersSampler
from harness.sampling.vllm.settings import WORKER_EXTENSION
from harness.types.sampler import SampleRequest, sample_all


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.answer(self, json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null"))

    do_POST = do_GET

    def log_message(self, *_): ...


class StandIn(ThreadingHTTPServer):
    """Answers as a vLLM server does; every token of a sample is its seed."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.settings = {
            "model_config": dict(
                logprobs_mode="processed_logprobs", max_model_len=100, dtype="torch.float32", hf_overrides={}
            ),
            "parallel_config": {"worker_extension_cls": WORKER_EXTENSION, "data_parallel_size": 1},
            "cache_config": {},
            "weight_transfer_config": None,
            "scheduler_config": {"enable_chunked_prefill": False},
            "device_config": {"device": "cpu"},
        }
        self.vllm = "0.32.0"
        self.calls = []
        self.version = "default"
        self.go = threading.Event()
        self.go.set()
        self.dead = False
        self.refuse = {}
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler, body):
        path = handler.path.split("?")[0]
        self.calls.append((path, body))
        answer = {}
        if path == "/server_info":
            answer = {"vllm_config": self.settings}
        elif path == "/version":
            answer = {"version": self.vllm}
        elif path == "/weight_info":
            answer = {"weight_version": self.version}
        elif path == "/update_weight_version":
            self.version = body["new_version"]
        elif path == "/collective_rpc":
            self.load(*body["args"])
        elif path == "/inference/v1/generate":
            self.go.wait(600)
            ids, logprobs = self.sample(body["token_ids"], body["sampling_params"])
            span = {"version": self.version, "start": 0, "end": len(ids)}
            choice = {"token_ids": ids, "logprobs": {"content": [{"logprob": value} for value in logprobs]}}
            answer = {"choices": [{**choice, "finish_reason": "length", "weight_versions": [span]}]}
        if self.dead:  # hangs up without a word
            handler.close_connection = True
            return
        handler.send_response(self.refuse.get(path, 200))
        handler.end_headers()
        handler.wfile.write(json.dumps(answer).encode())

    def forget(self):
        self.version = "default"

    def load(self, path):
        """Takes new weights."""

    def sample(self, prompt, sampling):
        n = sampling["max_tokens"]
        return [sampling["seed"]] * n, [-0.5] * n

    @property
    def seeds(self):
        return [body["sampling_params"]["seed"] for path, body in self.calls if path == "/inference/v1/generate"]

    def close(self):
        self.go.set()
        self.shutdown()
        self.server_close()


class ModelStandIn(StandIn):
    """One that samples with the weights it was sent, one request after another."""

    def __init__(self, model):
        super().__init__()
        self.model = copy.deepcopy(model)
        self.settings["model_config"]["max_model_len"] = model.config.max_position_embeddings
        for parameter in self.model.parameters():
            parameter.data.zero_()
        self._sampler = TransformersSampler(self.model)
        self._turn = threading.Lock()

    def load(self, path):
        load_model(self.model, path)

    def sample(self, prompt, sampling):
        same = {name: sampling[name] for name in ("max_tokens", "seed", "temperature")}
        with self._turn:
            request = SampleRequest(0, prompt, stop_ids=frozenset(sampling["stop_token_ids"]), **same)
            (sample,) = sample_all(self._sampler, [request])
            self._sampler.end_session(0)
        return sample.ids, sample.logprobs
