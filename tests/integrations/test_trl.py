"""K in TRL's own GRPOTrainer, with a scripted agent: outcome by outcome what `ElasticHorizon` alone says."""

import asyncio
import json
import multiprocessing
import queue
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trl
from accelerate import PartialState
from alone import update_alone
from byte_tokenizer import byte_tokenizer
from datasets import Dataset
from endings import ENDS, Heard, K

from eh_gym import ElasticHorizon, EpisodeOutcome, KeyedHorizon
from eh_gym.errors import ConfigError
from eh_gym.integrations.tools import ToolEnvironment
from eh_gym.integrations.trl import ElasticToolCalls
from harness.model.fresh import fresh_qwen2

# Each GRPOTrainer with environments says so.
pytestmark = pytest.mark.filterwarnings("ignore:You are using 'environment_factory', which is an experimental")


class Countdown:
    def reset(self, goal, **row):
        self.goal, self.pressed = goal, 0
        return f"Press {goal} times."

    def press(self) -> str:
        """Presses the button.

        Returns:
            The number of presses.
        """
        self.pressed += 1
        return str(self.pressed)

    def get_reward(self):
        return float(self.pressed == self.goal)


def policy():
    """A model that nobody listens to, and a tokenizer of bytes with the template of Qwen2.5 that TRL carries."""
    tokenizer = byte_tokenizer((Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text("utf-8"))
    ends = {"eos_id": tokenizer.eos_token_id, "pad_id": tokenizer.pad_token_id}
    return fresh_qwen2(len(tokenizer), 8, 8, 1, 1, 1, positions=16384, **ends), tokenizer


def replied(tokenizer, ids, agent):
    text = tokenizer.decode(ids).split("</tools>", 1)[1]
    call = agent(text, text.count("<tool_response>\n"))
    reply = f"<tool_call>\n{json.dumps(call)}\n</tool_call>" if call else "done"
    return tokenizer(reply + "<|im_end|>", add_special_tokens=False)["input_ids"]


class Scripted(trl.GRPOTrainer):
    agent = staticmethod(lambda text, calls: None)

    def _generate_single_turn(self, prompt_ids, *_, **__):
        return [replied(self._tokenizer, ids, self.agent) for ids in prompt_ids], None


def train(rows, agent, folder, *, environment, controller, group=2, updates=None, resume=None, **settings):
    told = {name: settings.pop(name) for name in ("success", "zero_reward_on_truncation") if name in settings}
    model, tokenizer = policy()
    args = trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=len(rows) // (updates or 1) * group,
        num_generations=group,
        max_completion_length=settings.pop("max_completion_length", 8192),
        max_steps=settings.pop("max_steps", updates or 1),
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=None,  # off, without the warning that transformers 5.23 has for False
        shuffle_dataset=False,
        disable_tqdm=True,
        save_strategy="steps",
        save_steps=1,
        **settings,
    )
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], **row} for row in rows])
    trainer = Scripted(
        model, None, args=args, train_dataset=data, processing_class=tokenizer, environment_factory=environment
    )
    trainer.agent = agent
    elastic = ElasticToolCalls(trainer, controller, **told)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, elastic


@pytest.mark.parametrize("zero", [True, False], ids=["zero", "keep"])
def test_every_end_earns_what_the_table_says(tmp_path, zero, monkeypatch):
    monkeypatch.setitem(ENDS, "failed", ENDS["failed"]._replace(info={"success": 0.9}))
    controller, rows = Heard(K), [{"task_id": name} for name in ENDS]
    run = {
        "environment": lambda: ToolEnvironment("Endings-v0"),
        "controller": controller,
        "zero_reward_on_truncation": zero,
        "success": None if zero else lambda total: total > 0,
        "num_iterations": 1,
    }
    trainer, _ = train(rows, lambda text, calls: {"name": "act", "arguments": {"action": "go"}}, tmp_path, **run)
    [row] = [row for row in trainer.state.log_history if "reward" in row]
    assert row["reward"] == pytest.approx(
        sum(end.zero if zero else end.keep for end in ENDS.values()) / len(ENDS), abs=1e-5
    )
    # The agent goes on to call the tool after each end, and an episode has the environment's length.
    heard = [(o.length, o.success, o.truncated) for o in controller.outcomes]
    expected = [(len(end.own), end.success if zero else end.paid, end.stopped) for end in ENDS.values()]
    assert heard == [one for one in expected for _ in range(2)]


def test_the_weighted_sum_of_all_functions_says_what_a_stopped_episode_keeps():
    rules = [lambda **_: [1.0, 2.0], lambda **_: [-1.0, -0.5]]
    model, weights = SimpleNamespace(training=False), torch.tensor([1.0, 2.0])
    trainer = SimpleNamespace(tools=[1], reward_funcs=rules, reward_weights=weights, model=model, eos_token_ids=[1])
    trainer.add_callback = lambda _: None
    ElasticToolCalls(trainer, Heard(K))
    stopped = {"completions": [[{"role": "assistant"}, {"role": "tool"}]] * 2, "completion_ids": [[0]] * 2}
    assert [rule(**stopped) for rule in trainer.reward_funcs] == [[1.0, 0.0], [-1.0, 0.0]]  # 1 - 2, 2 - 1


def fast_horizon():
    return ElasticHorizon(k0=5, k_min=2, k_max=12, alpha=0.9, delta=3, min_successes=2)


def press(text, calls):
    """Presses as often as the prompt says."""
    goal = int(text.split("Press ")[1].split(" ")[0])
    return {"name": "press", "arguments": {}} if calls < goal else None


class TestAnEnvironmentOfTheirs:
    GOALS = (2, 3, 5, 5, 4, 4, 7, 9, 3, 2)  # two tasks an update

    def test_k_moves_as_the_controller_alone_does_and_a_resumed_run_goes_on(self, tmp_path):
        rows = [{"goal": goal} for goal in self.GOALS]
        run = {"environment": Countdown, "updates": 5}
        trainer, whole = train(rows, press, tmp_path / "whole", controller=fast_horizon(), **run)
        alone, expected = fast_horizon(), []
        for goals in zip(self.GOALS[::2], self.GOALS[1::2], strict=True):
            k = alone.horizon
            outcomes = update_alone(alone, [goal for goal in goals for _ in range(2)])
            expected.append((k, sum(o.success for o in outcomes) / 4, sum(o.truncated for o in outcomes) / 4))
        logged = [r for r in trainer.state.log_history if "horizon/k" in r]
        assert [(r["horizon/k"], r["rollout/success"], r["rollout/truncated"]) for r in logged] == expected
        assert len({k for k, _, _ in expected}) > 2
        assert len({truncated for _, _, truncated in expected}) > 1
        assert whole.state()["attributes"]["controller"] == alone.state_dict()

        resume = str(tmp_path / "whole" / "checkpoint-3")
        _, resumed = train(rows, press, tmp_path / "again", controller=fast_horizon(), resume=resume, **run)
        assert resumed.state() == whole.state()

    def test_an_episode_that_its_length_truncated_earns_nothing(self, tmp_path):
        environment = type("Paid", (Countdown,), {"get_reward": lambda self: 1.0})
        run = {"environment": environment, "controller": ElasticHorizon(k0=15), "max_completion_length": 150}
        row = train([{"goal": 9}], press, tmp_path, **run)[0].state.log_history[0]
        assert (row["reward"], row["rollout/truncated"]) == (0.0, 1.0)

    def test_evaluation_tells_the_controller_nothing(self, tmp_path):
        trainer, elastic = train(
            [{"goal": 2}], press, tmp_path, environment=Countdown, controller=ElasticHorizon(k0=5, k_min=5)
        )
        before = elastic.state()
        found = trainer.evaluate(eval_dataset=trainer.train_dataset)
        assert found["eval_reward"] == 1.0
        assert elastic.state() == before


@pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'")
def test_a_rollout_of_trl_s_own_process_has_the_k_of_its_start(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text("utf-8")
    [code] = [code.split("```")[0] for code in page.split("```python\n") if "class ElasticLoop" in code]
    exec(code, names := {"__name__": "elastic"})
    goals, played = TestAnEnvironmentOfTheirs.GOALS, []

    class Loop(names["ElasticLoop"]):
        async def _generate_one_turn(self, prompt_ids):
            ids = replied(self.tokenizer, prompt_ids, press)
            return ids, [0.0] * len(ids)

        async def _score_group(self, group):
            [sample] = await super()._score_group(group)
            played.append((*group.rollout_rewards[0], sample.metrics["reward"]))
            if len(played) == len(goals):
                self._stop_event.set()
            return [sample]

        async def play(self):
            await asyncio.wait_for(
                asyncio.gather(self._generate_loop(self._stop_event), self._score_loop(self._stop_event)), 60
            )

    PartialState(cpu=True)  # for TRL's logger
    _, tokenizer = policy()
    loop = Loop(
        horizon={"folder": tmp_path, "controller": fast_horizon(), "update_every": 2},
        dataset=[{"prompt": [{"role": "user", "content": ""}], "goal": goal} for goal in goals],
        environment_factory=Countdown,
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=1,
        max_inflight_tasks=1,
        reward_funcs=[],
        **dict.fromkeys(("rollout_buffer", "metrics_queue"), queue.Queue()),
        **dict.fromkeys(("model_version_value", "heartbeat_value"), multiprocessing.Value("d")),
        **dict.fromkeys(("model_name", "failed_event", "exception_info_queue")),
    )
    loop._loop.run_until_complete(loop.play())
    alone = fast_horizon()
    for i, (goal, (k, length, cut, *_, reward)) in enumerate(zip(goals, played, strict=True)):
        assert (length, cut, reward) == (min(goal, k), goal > k, float(goal <= k))
        alone.record(EpisodeOutcome(length, k, not cut, cut))
        if i % 2:
            alone.update()
    assert loop.horizon.horizon == alone.horizon
    assert len({k for k, *_ in played}) > 2


def test_refusals(tmp_path):
    trainer, _ = train([{"goal": 2}], press, tmp_path, environment=Countdown, controller=ElasticHorizon(k0=5, k_min=5))
    with pytest.raises(ConfigError, match="one K for all episodes"):
        ElasticToolCalls(trainer, KeyedHorizon(ElasticHorizon, "kind"))
    trainer.reward_funcs = [trainer.model]
    with pytest.raises(ConfigError, match="ordinary function"):
        ElasticToolCalls(trainer, ElasticHorizon())
    trainer.tools = []
    with pytest.raises(ConfigError, match="environment_factory"):
        ElasticToolCalls(trainer, ElasticHorizon())
