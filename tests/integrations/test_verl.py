"""K in verl's own agent loop worker, with a scripted model: outcome by outcome what `ElasticHorizon` alone says.

Played are the server that samples, the worker that scores, the TransferQueue, and Ray.
"""

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from eh_gym import ElasticHorizon

pytest.importorskip("verl")

import verl
import verl.experimental.agent_loop.agent_loop as loops
import verl.trainer.ppo.v1.agent_loop_tq as queued
from alone import update_alone
from byte_tokenizer import byte_tokenizer
from endings import ENDS, K
from hydra import compose, initialize_config_dir
from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY, function_tool
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

import eh_gym.integrations.verl as ours

SETTINGS = {"k0": 5, "k_min": 2, "k_max": 12, "alpha": 0.9, "delta": 3, "min_successes": 2}
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(TEMPLATE)


class Presser:
    """In the place of verl's client of the sampling servers: presses as often as the prompt says, then answers."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        text = self.tokenizer.decode(prompt_ids)
        goal, pressed = int(text.split("Press ")[1].split(" ")[0]), text.count("pressed<")
        call = '<tool_call>\n{"name": "press", "arguments": {}}\n</tool_call>'
        ids = self.tokenizer((call if pressed < goal else "done") + "<|im_end|>", add_special_tokens=False)["input_ids"]
        return TokenOutput(token_ids=ids, log_probs=[0.0] * len(ids), extra_fields={"max_global_steps": 7})


def remotely(target):
    class Handle:
        def __getattr__(self, name):
            async def remote(*args):
                return getattr(target, name)(*args)

            return SimpleNamespace(remote=remote)

    return Handle()


class FakeRay:
    """`ray.remote(...).options(name=..., get_if_exists=True).remote(...)` and `ray.get_actor`, in this process."""

    def __init__(self):
        self.actors = {}

    def remote(self, made):
        def options(name, get_if_exists, num_cpus):
            assert get_if_exists

            def start(*args):
                if name not in self.actors:
                    self.actors[name] = remotely(made(*args))
                return self.actors[name]

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def get_actor(self, name):
        return self.actors[name]


@pytest.fixture
def play(request, tokenizer, tmp_path, monkeypatch):
    """Plays rollouts in a real worker of verl; returns what went to the TransferQueue."""

    @function_tool
    def press() -> str:
        """Presses the button."""
        return "pressed"

    rollout = "actor_rollout_ref.rollout"
    told = {
        "name": "vllm",
        "prompt_length": 1024,
        "response_length": 4096,
        "multi_turn.enable": True,
        "multi_turn.format": "hermes",
    }
    # As in docs/trainers.md, and what the trainer would load these names into.
    flags = [f"+{rollout}.agent.agent_loop_manager_class=eh_gym.integrations.verl.ElasticAgentLoopManager"]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", [*(f"{rollout}.{name}={value}" for name, value in told.items()), *flags])
    named = {"_target_": "eh_gym.integrations.verl.ElasticToolAgentLoop", "folder": str(tmp_path), "update_every": 4}
    horizon = dict(getattr(request, "param", SETTINGS))
    named["zero_reward_on_truncation"] = horizon.pop("zero_reward_on_truncation", True)
    monkeypatch.setitem(loops._agent_loop_registry, "elastic", {**named, "horizon": horizon})
    monkeypatch.setattr(loops, "rollout_trace_attr", lambda **_: nullcontext())
    monkeypatch.setattr(ours, "ray", FakeRay())
    put = {}

    async def keep(keys, fields, tags, partition_id):
        put.update({key: fields[i] for i, key in enumerate(keys)})

    monkeypatch.setattr(queued.tq, "async_kv_batch_put", keep)
    scores = SimpleNamespace(compute_score=lambda data: {"reward_score": 1.0, "reward_extra_info": {}})
    worker = object.__new__(ours.ElasticAgentLoopWorker)
    worker.config, worker.llm_client, worker.tokenizer = config, Presser(tokenizer), tokenizer
    worker.rollout_config = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    worker.processor, worker.hf_model_type, worker.dataset_cls = None, None, RLHFDataset
    worker.tools, worker.distillation_enabled = [FUNCTION_TOOL_REGISTRY["press"]], False
    worker.mm_processor_kwargs, worker.reward_loop_worker_handles = {}, [remotely(scores)]

    def play(goals, validate=False):
        async def all_of_them():
            about = {"step": 0, "sample_index": 0, "rollout_n": 0, "validate": validate}
            for i, goal in enumerate(goals):
                row = {"raw_prompt": [{"role": "user", "content": f"Press {goal} times."}], "global_steps": 0}
                row["extra_info"] = {"task_id": f"press-{goal}"}
                await worker._run_agent_loop(
                    {}, about, agent_name="elastic", trace=False, uid=str(i), session_id=0, **row
                )

        put.clear()
        asyncio.run(all_of_them())
        rows = [put[f"{i}_0_0"] for i in range(len(goals))]
        marks = [getattr(row["extra_fields"], "data", row["extra_fields"]) for row in rows]
        assert all(mark["max_global_steps"] == 7 for mark in marks)  # the server's own fields are still there
        return [(mark["horizon"], float(row["rm_scores"].sum())) for mark, row in zip(marks, rows, strict=True)]

    yield play
    FUNCTION_TOOL_REGISTRY.pop("press", None)


def test_k_moves_as_the_controller_alone_does(play, tmp_path):
    alone, seen = ElasticHorizon(**SETTINGS), set()
    for goals in [(2, 2, 3, 3), (4, 4, 4, 4), (6, 6, 5, 5), (9, 9, 3, 3), (2, 2, 1, 1)]:
        k, outcomes = alone.horizon, update_alone(alone, [goal + 1 for goal in goals])  # the answer is a step too
        assert play(goals) == [([o.length, k, o.truncated], float(o.success)) for o in outcomes]
        seen.add((k, any(outcome.truncated for outcome in outcomes)))
    assert len({k for k, _ in seen}) > 2
    assert {cut for _, cut in seen} == {True, False}
    state = (tmp_path / "state.json").read_text()
    assert json.loads(state) == json.loads(json.dumps(alone.state_dict()))
    assert len((tmp_path / "horizon.jsonl").read_text().splitlines()) == 5

    assert {mark[1] for mark, _ in play((1, 1, 1, 1), validate=True)} == {alone.horizon}
    assert (tmp_path / "state.json").read_text() == state


@pytest.mark.parametrize(
    "play", [{"name": "task", "k0": 12, "k_min": 2, "k_max": 12, "min_episodes": 1, "delta": 1}], indirect=True
)
def test_each_task_has_its_own_k(play):
    assert {mark[1] for mark, _ in play((2, 2, 4, 4))} == {12}
    assert [mark[1] for mark, _ in play((2, 4, 2, 7))] == [4, 6, 4, 12]  # 2 + 1 steps, and 1 more


FIXED = {"name": "fixed", "k0": 3}


@pytest.mark.parametrize(
    "play", [{**FIXED, "zero_reward_on_truncation": zero} for zero in (True, False)], indirect=True
)
@pytest.mark.parametrize("validate", [False, True])
def test_a_stopped_rollout_earns_the_same_in_training_and_validation(play, validate, request):
    kept = 0.0 if request.node.callspec.params["play"]["zero_reward_on_truncation"] else 1.0
    assert play((1, 2, 3, 9), validate=validate) == [
        ([2, 3, False], 1.0),
        ([3, 3, False], 1.0),
        *[([3, 3, True], kept)] * 2,
    ]


@pytest.mark.parametrize("zero", [True, False])
def test_every_end_earns_what_the_table_says(tmp_path, zero):
    actor, heard = ours.HorizonActor(str(tmp_path), 1, 1.0, FIXED, zero), []
    actor._horizon.record = heard.append
    for end in ENDS.values():
        rewards = end.rewards[:K]
        assert actor.record(len(rewards), K, end.stopped, sum(rewards), {}) == pytest.approx(
            end.zero if zero else end.keep
        )
    expected = [(not end.stopped and end.keep > 1 - 1e-9, end.stopped) for end in ENDS.values()]
    assert [(o.success, o.truncated) for o in heard] == expected


def test_the_manager_starts_our_workers():
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=None, model=None))
    manager = ours.ElasticAgentLoopManager(config, llm_client=None)
    started = manager.agent_loop_workers_class.__ray_metadata__.modified_class
    assert issubclass(started, ours.ElasticAgentLoopWorker)
