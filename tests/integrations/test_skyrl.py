"""K in SkyRL's own generator, with a scripted model: outcome by outcome what `ElasticHorizon` alone says.

The inference engine, which needs a GPU, is played.
"""

import asyncio
import json

import pytest

from eh_gym import ElasticHorizon, TaskHorizon

pytest.importorskip("skyrl")

import skyrl_gym
from alone import QUICK, cabinet_lengths, update_alone
from byte_tokenizer import CHATML, byte_tokenizer
from endings import ENDS, Heard, K
from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
from skyrl.train.generators.base import BatchMetadata, TrajectoryID
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from eh_gym.integrations.skyrl import ElasticGymGenerator, GymTextEnv


class Pressing(BaseTextEnv):
    """Not ours: rewards the agent that presses `goal` times, and ends an episode itself at its limit, as SkyRL's own
    do."""

    def __init__(self, env_config, extras):
        super().__init__()
        self.goal, self.max_turns = extras["goal"], extras["max_turns"]

    def init(self, prompt):
        return prompt, {}

    def step(self, action):
        self.turns += 1
        won = self.turns >= self.goal
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": "pressed"}],
            reward=1.0 if won else 0.05,
            done=won or self.turns >= self.max_turns,
            metadata={},
        )


@pytest.fixture(scope="module", autouse=True)
def registered():
    skyrl_gym.register(id="eh", entry_point="eh_gym.integrations.skyrl:GymTextEnv")
    skyrl_gym.register(id="pressing", entry_point=Pressing)
    yield
    for name in ("eh", "pressing"):
        skyrl_gym.envs.registration.registry.pop(name)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(CHATML)


class Engine:
    def __init__(self, tokenizer, agent):
        self.tokenizer, self.agent = tokenizer, agent

    async def generate(self, request, model=None):
        [ids] = request["prompt_token_ids"]
        said = self.tokenizer.decode(ids).split("<|im_start|>")[1:]
        messages = [
            {"role": role, "content": content.removesuffix("<|im_end|>\n")}
            for role, content in (part.split("\n", 1) for part in said[:-1])
        ]
        text = self.agent({"messages": messages})
        reply = self.tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"]
        await asyncio.sleep(0)
        return {"responses": [text], "response_ids": [reply], "stop_reasons": ["stop"]}

    async def finish_session(self, session_id):
        pass


def made(tokenizer, agent, folder, *, update_every=4, controller=None, zero=True, success=None, **told):
    told = {"max_turns": 99, "max_input_length": 100_000, "use_conversation_multi_turn": True, "batched": False, **told}
    config = GeneratorConfig(**told)
    return ElasticGymGenerator(
        controller or ElasticHorizon(**QUICK),
        folder=folder,
        update_every=update_every,
        zero_reward_on_truncation=zero,
        success=success,
        generator_cfg=config,
        skyrl_gym_cfg=SkyRLGymConfig(max_env_workers=0),
        inference_engine_client=Engine(tokenizer, agent),
        tokenizer=tokenizer,
    )


def play(generator, env_class, rows, phase="train"):
    batch = {
        "prompts": [[{"role": "user", "content": "start"}] for _ in rows],
        "env_classes": [env_class] * len(rows),
        "env_extras": [dict(row) for row in rows],
        "sampling_params": None,
        "trajectory_ids": [TrajectoryID(str(i), 0) for i in range(len(rows))],
        "batch_metadata": BatchMetadata(global_step=1, training_phase=phase),
    }
    return asyncio.run(generator.generate(batch, disable_tqdm=True))


def total(reward):
    return sum(reward) if isinstance(reward, list) else reward


@pytest.mark.parametrize("step_wise", [False, True])
def test_k_moves_as_the_controller_alone_does_and_a_later_run_goes_on(tokenizer, chat_server, tmp_path, step_wise):
    generator = made(tokenizer, chat_server.cabinet_agent, tmp_path, step_wise_trajectories=step_wise)
    alone, shown = ElasticHorizon(**QUICK), set()
    for first in (0, 4, 8):
        seeds, k = range(first, first + 4), alone.horizon
        out = play(generator, "eh", [{"gym_id": "EH-Cabinet-v0", "seed": seed} for seed in seeds])
        last = out["is_last_step"] or [True] * 4
        found = [(m, total(r)) for m, r, end in zip(out["env_metrics"], out["rewards"], last, strict=True) if end]
        expected = [(o.length, o.truncated, o.success) for o in update_alone(alone, cabinet_lengths(seeds))]
        assert [(m["turns"], m["truncated"], r) for m, r in found] == expected
        assert out["rollout_metrics"]["horizon/k"] == k
        shown.add(k)
    assert len(shown) > 1
    saved, state = json.loads((tmp_path / "state.json").read_text()), json.loads(json.dumps(alone.state_dict()))
    for each in (saved, state):  # rollouts are recorded in the order in which they end
        each["lengths"].sort()
    assert saved == state

    before = (tmp_path / "state.json").read_text()
    evaluated = play(generator, "eh", [{"gym_id": "EH-Cabinet-v0", "seed": 2}] * 4, phase="eval")
    assert evaluated["rollout_metrics"]["horizon/k"] == alone.horizon
    assert (tmp_path / "state.json").read_text() == before
    generator._horizon.close()
    later = made(tokenizer, chat_server.cabinet_agent, tmp_path)
    assert play(later, "eh", [{"gym_id": "EH-Cabinet-v0", "seed": 2}])["rollout_metrics"]["horizon/k"] == alone.horizon


def test_an_environment_of_theirs_gets_k_and_earns_nothing_where_k_stopped_it(tokenizer, tmp_path):
    generator = made(tokenizer, lambda request: "press", tmp_path)
    goals = (3, 10, 11, 30)
    out = play(generator, "pressing", [{"goal": goal} for goal in goals])
    turns = [
        sum(mask == 1 and before == 0 for before, mask in zip([0, *m], m, strict=False)) for m in out["loss_masks"]
    ]
    assert turns == [3, 10, 10, 10]
    assert [round(total(reward), 6) for reward in out["rewards"]] == [1.1, 1.45, 0.0, 0.0]
    alone = ElasticHorizon(**QUICK)
    update_alone(alone, goals)
    assert generator._horizon.horizon == alone.horizon


@pytest.mark.parametrize("zero", [True, False], ids=["zero", "keep"])
def test_every_end_earns_what_the_table_says(tokenizer, tmp_path, zero):
    controller = Heard(K)
    rule = None if zero else lambda total: total > 0
    told = {"controller": controller, "update_every": 1, "zero": zero, "success": rule}
    generator = made(tokenizer, lambda request: "go", tmp_path, **told)
    for name, end in ENDS.items():
        out = play(generator, "eh", [{"gym_id": "Endings-v0", "task_id": name}])
        [metrics], [rewards] = out["env_metrics"], out["rewards"]
        assert total(rewards) == pytest.approx(end.zero if zero else end.keep), name
        assert (metrics["success"], metrics["truncated"]) == (end.success, end.stopped), name
        if end.stopped and zero and end.zero == 0:
            assert not any(rewards), name  # step-wise advantages read each turn's
    expected = [(end.success if zero else end.paid, end.stopped) for end in ENDS.values()]
    assert [(o.success, o.truncated) for o in controller.outcomes] == expected


@pytest.mark.parametrize("zero", [True, False], ids=["zero", "keep"])
@pytest.mark.parametrize("name", ENDS)
def test_an_environment_alone_earns_the_same(name, zero):
    end, done, rewards = ENDS[name], False, []
    row = {"gym_id": "Endings-v0", "task_id": name, "max_turns": K, "zero_reward_on_truncation": zero}
    env = GymTextEnv({}, row)
    env.init([])
    while not done:
        step = env.step("go")
        done, rewards = step["done"], [*rewards, step["reward"]]
    assert sum(rewards) == pytest.approx(end.zero if zero else end.keep)


def test_each_task_has_its_own_k(tokenizer, tmp_path):
    horizon = TaskHorizon(k0=9, k_min=2, k_max=9, min_episodes=1, delta=1)
    generator = made(tokenizer, lambda request: "press", tmp_path, controller=horizon)
    for _ in range(2):
        out = play(generator, "pressing", [{"goal": goal, "task_id": f"press-{goal}"} for goal in (3, 5, 3, 5)])
        assert [round(total(reward), 6) for reward in out["rewards"]] == [1.1, 1.2] * 2
        assert tuple(generator._horizon.horizon_for({"task_id": f"press-{goal}"}, None) for goal in (3, 5)) == (4, 6)
    [cut] = play(generator, "pressing", [{"goal": 8, "task_id": "press-3"}])["rewards"]
    assert total(cut) == 0  # it needs 8 turns, and its task has 4


def test_a_rollout_without_room_for_more_tokens_is_truncated(tokenizer, tmp_path):
    generator = made(tokenizer, lambda request: "press", tmp_path, max_input_length=100)
    out = play(generator, "pressing", [{"goal": 9}] * 4)
    assert [total(reward) for reward in out["rewards"]] == [0.0] * 4
    log = json.loads((tmp_path / "horizon.jsonl").read_text())
    assert (log["episodes"], log["horizon/buffer_size"]) == (4, 0)
