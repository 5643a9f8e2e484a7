"""The tokens of agents that change their history, stop early or ask for less: counted once, scored as sampled."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from byte_tokenizer import byte_tokenizer
from cabinet_agent import ask
from small_model import of_written, plain_logprobs

import eh_gym
from harness.agents.env import AgentEnv
from harness.chat.chat import ChatFormat
from harness.model.fresh import fresh_qwen2
from harness.model.policy import Policy
from harness.rollout.rollout import rollout
from harness.sampling.transformers import TransformersSampler
from harness.settings.loss import Loss
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.update.update import select_episodes

Agent = Callable[[Callable[..., str]], None]
START = [{"role": "system", "content": "rules"}, {"role": "user", "content": "start c"}]


def grows(say):
    messages = list(START)
    for _ in range(4):
        messages += [{"role": "assistant", "content": say(messages)}, {"role": "user", "content": "closed"}]


def compacts(say):
    """After two calls, only the last exchange stays."""
    messages = list(START)
    for _ in range(5):
        messages += [{"role": "assistant", "content": say(messages)}, {"role": "user", "content": "closed"}]
        if len(messages) > 5:
            messages = [START[0], *messages[-3:]]


def delegates(say):
    messages, other = list(START), [{"role": "user", "content": "start d"}]
    for _ in range(2):
        messages += [{"role": "assistant", "content": say(messages)}, {"role": "user", "content": "closed"}]
        other += [{"role": "assistant", "content": say(other)}, {"role": "user", "content": "nothing"}]
    say(messages)


def asks_twice_at_once(say):
    with ThreadPoolExecutor(2) as both:
        list(both.map(say, [START, [{"role": "user", "content": "start d"}]]))


def votes(say):
    with ThreadPoolExecutor(3) as three:
        list(three.map(say, [START] * 3))


def asks_for_less(say):
    messages = list(START)
    for options in ({"max_tokens": 2}, {"stop": ["("]}, {"stop": "no such text"}, {"max_completion_tokens": 1}):
        messages += [{"role": "assistant", "content": say(messages, **options)}, {"role": "user", "content": "closed"}]


def play(agent, policy, episodes=3, max_context=None):
    """Plays an agent. Also returns the answers that each episode's agent got, by the episode's place."""
    asked = {}
    lock = threading.Lock()

    def once(task, base_url):
        with lock:
            answers = asked[str(len(asked))] = []

        def say(messages, **options):
            answers.append(ask(base_url, messages, logprobs=True, **options))
            return str(answers[-1]["choices"][0]["message"]["content"])

        agent(say)
        return len(asked) % 2 == 0

    envs = eh_gym.ThreadVectorEnv([lambda: AgentEnv(once, [{"id": "x"}])])
    requests = [EpisodeRequest("x", 0, seed) for seed in range(episodes)]
    try:
        sampler = TransformersSampler(policy.model, max_context=max_context)
        rules = Rollout(max_action_tokens=6, rollout="streaming")
        return rollout(envs, sampler, policy.chat, requests, rules), asked
    finally:
        envs.close()


AGENTS = {  # and how many sequences their episodes are
    grows: 1,
    compacts: 4,
    delegates: 2,
    asks_twice_at_once: 2,
    votes: 3,
    asks_for_less: 1,
}


@pytest.mark.parametrize(("agent", "sequences"), AGENTS.items(), ids=[agent.__name__ for agent in AGENTS])
def test_every_sampled_token_is_counted_once_and_scored_as_it_was_sampled(agent, sequences, trained):
    episodes, asked = play(agent, trained)
    for episode, answers in zip(episodes, asked.values(), strict=True):
        assert episode.end == "terminated", episode.failure
        assert len(episode.sequences) == sequences
        written = 0
        for sequence in episode.sequences:
            sampled = of_written(sequence.logprobs, sequence)
            scored = of_written(plain_logprobs(trained.model, sequence.ids), sequence)
            assert sampled == pytest.approx(scored, abs=2e-5)
            written += len(sampled)
        usage = [answer["usage"] for answer in answers]
        assert written == episode.action_tokens == sum(each["completion_tokens"] for each in usage) > 0
        assert episode.length == len(answers)
        assert sum(turn.action_tokens for turn in episode.turns) == written
        assert episode.prompt_tokens == usage[0]["prompt_tokens"]
        assert len(episode.versions) == len(answers)
        told = {round(each["logprob"], 6) for a in answers for each in a["choices"][0]["logprobs"]["content"]}
        kept = {round(p, 6) for s in episode.sequences for p in of_written(s.logprobs, s)}
        assert told <= kept, "what the agent was told is what was recorded"
    chosen, _ = select_episodes(episodes, Loss(normalize_std=False))
    assert [id(t) for t, _ in chosen] == [id(t) for t in episodes]  # rewards differ: each episode has one advantage


def test_an_answer_ends_before_the_agents_stop_text(trained):
    [episode, *_], asked = play(asks_for_less, trained)
    limited, stopped, whole, single = [answer["choices"][0] for answer in asked["0"]]
    assert [choice["finish_reason"] for choice in (limited, single)] == ["length", "length"]
    assert "(" not in stopped["message"]["content"]
    assert stopped["message"]["content"]
    assert "(" in whole["message"]["content"]
    assert [turn.cut for turn in episode.turns] == [True, False, False, True]
    assert [turn.action_tokens for turn in episode.turns][::3] == [2, 1]


def sends_a_result(say):
    """Asks, and then sends a result, which the template below does not know."""
    said = say(START)
    say([*START, {"role": "assistant", "content": said}, {"role": "tool", "tool_call_id": "a", "content": "x"}])


def asks_in_a_strange_way(say):
    """Begins with what the template does not know."""
    say([{"role": "tool", "tool_call_id": "a", "content": "x"}])


def test_messages_that_the_template_refuses_are_the_agents_failure():
    tokenizer = byte_tokenizer(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    shape = (len(tokenizer), 16, 16, 1, 1, 1)
    model = fresh_qwen2(*shape, positions=512, eos_id=tokenizer.eos_token_id, initializer_range=0.3)
    policy = Policy(model, tokenizer, ChatFormat(tokenizer))
    [episode], asked = play(sends_a_result, policy, episodes=1)
    assert (episode.end, episode.reward, episode.length, len(asked["0"])) == ("terminated", 0.0, 1, 1)
    assert "no tools" in str(episode.failure)
    [episode], asked = play(asks_in_a_strange_way, policy, episodes=1)
    assert (episode.end, episode.length, episode.retries, len(asked)) == ("terminated", 0, 2, 3)
    assert "no tools" in episode.fault
