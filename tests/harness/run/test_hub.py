"""huggingface_hub's own client pushes a run's model to a hub that is played by a server on this machine."""

import base64
import dataclasses
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import ModelCard, constants

from eh_gym.errors import ConfigError
from harness.run.hub import check_login, push
from harness.settings.grpo import GRPOConfig

EVALUATIONS = {
    "before": {"sampled": {"mean_at_k": 0.25, "tasks": 57}, "greedy": {"mean_at_k": 0.125}},
    "after": {"sampled": {"mean_at_k": 0.75, "tasks": 57}, "greedy": {"mean_at_k": 0.875}},
}


class Hub(ThreadingHTTPServer):
    """Keeps what it is sent. `refused` is answered to every commit."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.created, self.tokens, self.files, self.refused = [], set(), {}, 0


class Handler(BaseHTTPRequestHandler):
    timeout = 30

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hub, sent = self.server, [json.loads(line) for line in body.splitlines() if line]
        hub.tokens.add(self.headers["Authorization"])
        if self.path == "/api/repos/create":
            hub.created += sent
            self.answer({"url": f"{hub.url}/me/agent", "name": "me/agent"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif self.path == "/api/models/me/agent/preupload/main":
            files = [file["path"] for file in sent[0]["files"]]
            self.answer({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]})
        elif self.path == "/api/models/me/agent/commit/main" and hub.refused:
            self.answer({"error": "You have no right to write"}, hub.refused)
        elif self.path == "/api/models/me/agent/commit/main":
            for line in sent:
                if line["key"] == "file":
                    hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"{hub.url}/me/agent/commit/1", "commitOid": "1"})
        else:
            self.answer({"error": self.path}, 404)

    def answer(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch):
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield server
        server.shutdown()
        thread.join(timeout=10)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)))
    return folder


@pytest.mark.parametrize("public", [False, True])
def test_the_folder_arrives_whole_with_a_card(hub, model, public):
    config = GRPOConfig(
        push_to_hub="me/agent", push_public=public, model="Qwen/Qwen3-4B", run_dir=model.parent, eval_tasks=128
    )
    assert push(model, config, EVALUATIONS) == f"{hub.url}/me/agent"
    [made] = hub.created
    assert (made["name"], made["organization"], made["visibility"]) == (
        "agent",
        "me",
        "public" if public else "private",
    )
    assert hub.tokens == {"Bearer hf_test"}
    assert set(hub.files) == {"README.md", "config.json", "model.safetensors"}
    assert hub.files["model.safetensors"] == bytes(range(256))
    card = ModelCard(hub.files["README.md"].decode())
    assert (card.data.base_model, card.data.library_name) == ("Qwen/Qwen3-4B", "transformers")
    assert "Success on 57 tasks of the split `test`" in card.text  # all that the split has
    assert "| before | 0.250 | 0.125 |\n| after | 0.750 | 0.875 |" in card.text
    assert json.loads(card.text.split("```json")[1].split("```")[0]) == config.public()
    assert str(model.parent) not in card.text


def test_a_model_from_a_folder_is_no_base_model_of_the_hub(hub, model):
    push(model, GRPOConfig(push_to_hub="me/agent", model=str(model), eval_tasks=0), {})
    card = ModelCard(hub.files["README.md"].decode())
    assert card.data.base_model is None
    assert "The run evaluated nothing." in card.text


def test_without_a_login_a_run_does_not_begin(monkeypatch):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ConfigError, match="HF_TOKEN"):
        check_login()


@pytest.mark.parametrize("refused", [0, 403])
def test_a_run_ends_well_whatever_the_hub_says(hub, quick, tmp_path, capsys, refused):
    from harness.grpo import train
    from harness.run.display import Console, Display

    hub.refused = refused
    folder = tmp_path / "run"
    folder.mkdir()
    config = dataclasses.replace(quick, updates=1, eval_tasks=2, push_to_hub="me/agent", log="", run_dir=folder)
    train(config, folder, Display(Console(width=400)))
    assert json.loads((folder / "evaluation.json").read_text())["after"]
    assert not (folder / "tensorboard").exists()
    told = capsys.readouterr().out
    if refused:
        assert "warning" in told

        assert f"hf upload me/agent {folder / 'model'} --private" in told
        assert hub.files == {}
    else:
        assert f"hub:         {hub.url}/me/agent" in told
        assert hub.files["config.json"] == (folder / "model" / "config.json").read_bytes()
