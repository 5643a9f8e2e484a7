import json
import os
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import RepositoryNotFoundError
from one_step import copied, one_step
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from eh_gym.errors import ConfigError
from harness.model.policy import load_policy


@pytest.fixture
def folder(trained, tmp_path):
    trained.save(tmp_path)
    return tmp_path


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_the_trainer_scores_without_dropout(folder):
    change(folder, attention_dropout=0.5)
    model = load_policy(folder).model.train()
    assert {layer.self_attn.attention_dropout for layer in model.base_model.layers} == {0.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["packed", "sdpa"])
def test_gradients_are_equal_to_the_last_bit_whatever_is_computed_again(trained, dtype, attention):
    def gradients(**first):
        policy, passes = copied(trained), []
        policy.model.to(dtype).train().set_attn_implementation(attention)
        if first:
            policy.recompute(**first)
        for layer in policy.model.base_model.layers:
            layer.mlp.register_forward_pre_hook(lambda *_: passes.append(1))
        batch = policy.batch([one_step(trained, i, reply, reward=1) for i, reply in enumerate(("read()", "list() x"))])
        policy.score(batch, 1.0)[0].sum().backward()
        assert len(passes) == 4 - first.get("stored", 2)
        return [p.grad for p in policy.model.parameters() if p.grad is not None]

    expected = gradients()
    for kept, stored in ((0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (2, 2)):
        assert all(map(torch.equal, expected, gradients(kept=kept, stored=stored)))


def test_damaged_weights_are_an_error_of_one_line(folder):
    change(folder, hidden_size=32)
    with pytest.raises(ConfigError, match=r"damaged, copy or download"):
        load_policy(folder)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"header too small"):
        load_policy(folder)


def test_a_model_with_two_sets_of_rotary_frequencies_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0],
        "long_factor": [2.0],
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="LongRoPE"):
        load_policy(folder)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("runs/zzz", "no folder runs/zzz; runs/ holds maze1, maze2; "),
        ("/no/such/model", "no folder /no/such/model; give"),
        ("./zzz", "no folder ./zzz; ./ holds runs"),
        (Path("zzz"), "no folder zzz; give"),
        ("a/b/c", "no folder a/b/c; give"),
    ],
)
def test_a_folder_that_is_not_there_is_not_asked_for_at_the_hub(path, said, tmp_path, monkeypatch):
    for name in ("maze1", "maze2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.model.policy.model_info", None)
    with pytest.raises(ConfigError) as refused:
        load_policy(path)
    assert str(refused.value).startswith(said.replace("./ holds", f"{Path('.')}/ holds"))


@pytest.mark.parametrize(
    "why", [RepositoryNotFoundError.__new__(RepositoryNotFoundError), ConnectionError("no network")]
)
def test_a_hub_that_has_no_such_model_is_asked_once(why, monkeypatch):
    asked = []

    def model_info(name, **_):
        asked.append(name)
        raise why

    monkeypatch.setattr("harness.model.policy.model_info", model_info)
    with pytest.raises(ConfigError, match="no folder nope, and the hub gives no such model"):
        load_policy("nope")
    assert asked == ["nope"]


@pytest.mark.parametrize("given", [None, "/elsewhere"])
def test_what_is_compiled_is_kept_in_the_cache_folder_unless_the_user_names_another(folder, monkeypatch, given):
    monkeypatch.setenv("EH_CACHE_DIR", str(folder))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", given or default_cache_dir())
    load_policy(folder).compile_layers()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == (given or str(folder / "inductor"))
