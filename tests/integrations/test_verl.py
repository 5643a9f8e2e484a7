"""K in verl's own agent loop workers, in Ray, with a scripted model: outcome by outcome what `ElasticHorizon` alone says.

The manager, the workers, the loop, the tool parser, the tokenizer and the TransferQueue are verl's own. What needs a GPU is
played: the server that samples, and the worker that scores.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from eh_gym import ElasticHorizon, EpisodeOutcome

pytest.importorskip("verl")

import numpy as np
import ray
import torch
import transfer_queue as tq
import verl
from hydra import compose, initialize_config_dir
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast
from verl.utils import tensordict_utils as tu
from verl.workers.rollout.replica import TokenOutput

from eh_gym.integrations.verl import ACTOR, ElasticAgentLoopManager

SETTINGS = {"k0": 5, "k_min": 2, "k_max": 12, "alpha": 0.9, "delta": 3, "min_successes": 2}
TOOL = '''
from verl.tools.function_tool import function_tool

@function_tool
def press() -> str:
    """Presses the button."""
    return "pressed"
'''
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model_folder(folder):
    """A tokenizer of bytes, and the configuration of a model that nobody loads."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    LlamaConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(
        folder
    )
    return tokenizer


class Presser:
    """In the place of verl's client of the sampling servers: presses as often as the prompt says, then answers."""

    def __init__(self, folder):
        self.folder, self.tokenizer = str(folder), None

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        if self.tokenizer is None:
            self.tokenizer = PreTrainedTokenizerFast.from_pretrained(self.folder)
        text = self.tokenizer.decode(prompt_ids)
        goal, pressed = int(text.split("Press ")[1].split(" ")[0]), text.count("\npressed<")
        call = '<tool_call>\n{"name": "press", "arguments": {}}\n</tool_call>'
        ids = self.tokenizer((call if pressed < goal else "done") + "<|im_end|>", add_special_tokens=False)["input_ids"]
        return TokenOutput(token_ids=ids, log_probs=[0.0] * len(ids))


@ray.remote(num_cpus=0)
class Scorer:
    """In the place of verl's reward worker: everybody gets 1."""

    def compute_score(self, data):
        return {"reward_score": 1.0, "reward_extra_info": {}}


@pytest.fixture(scope="module")
def ray_here():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, namespace="verl-test")
    ray.cloudpickle.register_pickle_by_value(__import__("sys").modules[__name__])
    yield
    ray.shutdown()


def test_k_moves_as_the_controller_alone_does(ray_here, tmp_path):
    model_folder(tmp_path / "model")
    (tmp_path / "tools.py").write_text(TOOL)
    loop = {
        "name": "elastic",
        "_target_": "eh_gym.integrations.verl.ElasticToolAgentLoop",
        "folder": str(tmp_path / "k"),
        "update_every": 4,
        "horizon": SETTINGS,
    }
    (tmp_path / "loops.yaml").write_text(json.dumps([loop]))
    rollout = "actor_rollout_ref.rollout"
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={tmp_path / 'model'}",
                f"{rollout}.name=vllm",
                f"{rollout}.mode=async",
                f"{rollout}.n=2",
                f"{rollout}.prompt_length=1024",
                f"{rollout}.response_length=2048",
                f"{rollout}.multi_turn.enable=True",
                f"{rollout}.multi_turn.format=hermes",
                f"{rollout}.multi_turn.function_tool_path={tmp_path / 'tools.py'}",
                f"{rollout}.agent.num_workers=2",
                f"{rollout}.agent.default_agent_loop=elastic",
                f"{rollout}.agent.agent_loop_config_path={tmp_path / 'loops.yaml'}",
                f"+{rollout}.agent.agent_loop_manager_class={ElasticAgentLoopManager.__module__}.ElasticAgentLoopManager",
            ],
        )
    config.transfer_queue.enable = True
    config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
    tq.init(config.transfer_queue)
    manager = ElasticAgentLoopManager.create(
        config=config, llm_client=Presser(tmp_path / "model"), reward_loop_worker_handles=[Scorer.remote()]
    )

    def play(goals, step, validate=False):
        prompts = [[{"role": "user", "content": f"Press {goal} times."}] for goal in goals]
        uids = [f"{'v' if validate else 't'}{step}-{i}" for i in range(len(goals))]
        batch = tu.get_tensordict(
            {"raw_prompt": prompts, "uid": uids, "index": list(range(len(goals)))},
            non_tensor_dict={"global_steps": step, **({"validate": True} if validate else {})},
        )
        manager.generate_sequences(batch)
        return asyncio.run(gather(uids, "val" if validate else "train"))

    async def gather(uids, partition):
        while True:
            rows = tq.kv_list(partition).get(partition, {})
            if all(rows.get(uid, {}).get("status") in ("finished", "failure") for uid in uids):
                break
            await asyncio.sleep(0.2)
        assert {rows[uid]["status"] for uid in uids} == {"finished"}
        keys = sorted(key for key in rows if key not in uids and key.rsplit("_", 2)[0] in uids)
        fields = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=["rm_scores", "extra_fields"])
        rewards = [float(torch.as_tensor(row).sum()) for row in fields["rm_scores"]]
        return list(zip(keys, (row["horizon"] for row in fields["extra_fields"].tolist()), rewards, strict=True))

    alone = ElasticHorizon(**SETTINGS)
    seen = set()
    for step, goals in enumerate([(2, 3), (4, 4), (6, 5), (9, 3), (2, 1)]):
        k = alone.horizon
        needs = [goal + 1 for goal in goals for _ in range(2)]  # the answer is a step too
        expected = [([min(n, k), k, n > k], float(n <= k)) for n in needs]
        assert [(told, reward) for _, told, reward in play(goals, step)] == expected
        for n in needs:
            alone.record(EpisodeOutcome(min(n, k), k, n <= k, truncated=n > k))
        alone.update()
        seen.add((k, any(n > k for n in needs)))
    assert len({k for k, _ in seen}) > 2
    assert {cut for _, cut in seen} == {True, False}
    k = ray.get(ray.get_actor(ACTOR).horizon.remote())
    assert k == alone.horizon

    for _, told, _ in play((3, 3, 3, 3), 9, validate=True):
        assert told[1] == k
    assert ray.get(ray.get_actor(ACTOR).horizon.remote()) == k
    state = json.loads((tmp_path / "k" / "state.json").read_text())
    assert state == json.loads(json.dumps(alone.state_dict()))
    assert np.shape((tmp_path / "k" / "horizon.jsonl").read_text().splitlines()) == (5,)
