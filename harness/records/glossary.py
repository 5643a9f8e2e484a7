"""The glossary of all logged metrics: name, unit and formula.

It is the only list of metrics, and the table in the documentation is made from it. The tests of the folder that
measures a metric fail if it is missing here.
"""

from harness.types.trajectory import LENGTH_BINS

_TABLE = """
horizon/k | steps | K before this update moves it. Of several (kinds, environments) the largest.
horizon/k_mean | steps | The mean K of this update's episodes. Some options give an episode its own K.
horizon/binds | 0 or 1 | 1 if K ends most episodes, and either nothing succeeds or the successes' P90 length is at least K / 2.
horizon/k_of | steps | The next K of one kind, `horizon/k_of/KIND`. With --horizon-key, or several environments.
horizon/k_real | steps | The controller's real-valued K after this update. The next K is its rounded value.
horizon/boundary | steps | The statistic (P90) of the remembered successes' lengths. Null while there are too few successes.
horizon/target | steps | Boundary + headroom, clipped to k_min..k_max. Null while there are too few successes.
horizon/k_tasks | steps | With --wrapper task: the mean K of the tasks that have one of their own. Null while there is none.
horizon/bounded | share | With --wrapper task: the share of the tasks met so far that have a K of their own.
horizon/buffer_size | successes | The number of successes whose lengths the controller remembers.
rollout/success | share | The share of successful episodes.
rollout/success_ceiling | share | The share of episodes whose expert solution fits into K, among those with a known expert.
rollout/success_long | share | `rollout/success` on the third of the tasks whose known expert takes most steps.
rollout/success_of | share | With several environments: `rollout/success` of each, as `rollout/success_of/ENV`.
rollout/truncated_of | share | With several environments: `rollout/truncated` of each.
rollout/length_mean_of | steps | With several environments: `rollout/length_mean` of each.
rollout/episodes_of | episodes | With several environments: `rollout/episodes` of each.
rollout/reward_mean | reward | The mean of the episodes' rewards. That of a truncated one is 0, by default.
rollout/truncated | share | The share of episodes that were stopped by K, by the environment's own limit, or by the context.
rollout/length_mean | steps | The mean length of all episodes.
rollout/length_success_mean | steps | The mean length of the successes.
rollout/length_success_p90 | steps | The 90th percentile of the lengths of the successes.
rollout/steps_per_optimum | ratio | The mean of steps / the expert's steps over the successes with a known expert.
rollout/malformed | share | The share of actions that are not a valid call.
rollout/action_cut | share | The share of actions that were cut at max_action_tokens.
rollout/unfinished_reasoning | share | The share of turns whose thought never ended. Such a turn has no action.
rollout/reasoning_tokens | tokens | The number of tokens in thoughts. rollout/action_tokens counts them, too.
rollout/environment_errors | episodes | The number of episodes lost to a failed environment. Most metrics leave them out.
rollout/environment_retries | attempts | The number of times that an episode started again because its environment had failed.
rollout/agent_failures | episodes | With `--agent`: the number of episodes whose agent program failed or was silent.
rollout/agent_sequences | sequences | With `--agent`: the mean sequences of an episode, 1 if no agent changes its history.
rollout/cache_hits | share | With --sampler vllm: the share of the prompts' tokens that were in the engine's cache.
rollout/context_overflows | episodes | The number of episodes that ended because the context was full.
rollout/policy_lag | updates | The mean over actions of the number of policy updates that the sampler's weights were behind.
rollout/episodes | episodes | The number of episodes that count: all but those that were lost because their environment failed.
rollout/steps | steps | The number of steps of all episodes together.
rollout/action_tokens | tokens | The number of tokens that the model wrote.
rollout/prompt_tokens | tokens | The number of tokens in prompts and observations.
tokens/update | tokens | The number of action and prompt tokens in this update's episodes. Each token is counted once.
tokens/update_of | tokens | With several environments: `tokens/update` of each.
tokens/total | tokens | The sum of tokens/update so far.
tokens/failed_attempts | tokens | The tokens of attempts lost to a failed environment. They are not in tokens/update.
train/loss | nats | The aggregated clipped loss, with the KL term. The mean over the optimizer steps.
train/entropy | nats | The mean entropy of the distributions from which the trained tokens were sampled.
train/kl_ref | nats | The mean k3 estimate of KL(policy || reference) over the trained tokens.
train/approx_kl | nats | The mean k3 estimate of KL(policy that sampled || policy now) over the trained tokens.
train/clip_fraction | share | The share of trained tokens whose gradient was clipped away.
train/grad_norm | norm | The norm of the gradient before clipping. The mean over the optimizer steps.
train/skipped_steps | steps | The number of optimizer steps skipped for a gradient that was not finite. 0 in a sound run.
train/lr | rate | The learning rate of this update.
train/zero_advantage_groups | share | The share of groups whose rewards are all equal.
train/episodes_in_loss | episodes | The number of episodes in the loss: those of groups whose rewards differ; with --kl-coef, all.
train/tokens_in_loss | tokens | The number of tokens that the model wrote in those episodes.
train/logp_difference_max | nats | The largest |trainer's - sampler's log-probability| before the first optimizer step.
train/logp_difference_mean | nats | The mean of the same differences.
train/tis_weight_mean | ratio | The mean importance weight of trained tokens: trainer's / sampler's probability, at most tis_cap.
train/tis_capped | share | The share of trained tokens whose weight was out of bounds.
evaluation/mean_at_k | share | The share of successful episodes on held-out tasks at k_max, after this update.
evaluation/reward_mean | reward | The mean reward of the same episodes.
evaluation/mean_at_k_of | share | With several environments: `evaluation/mean_at_k` of each.
time/rollout_s | seconds | The time of this update's rollout. With max_staleness, part of it lies before this update.
time/train_s | seconds | The time of this update's policy update.
time/update_s | seconds | The time of this whole update.
time/total_s | seconds | The time of all updates so far, also before a resume. Evaluations do not count.
time/evaluation_s | seconds | The time of the held-out evaluation after this update. It is in no other time.
"""


LOOK_AT = ("rollout/success", "horizon/k", "rollout/truncated", "train/zero_advantage_groups", "train/entropy")
"""The metrics to look at first."""


_ROWS = (line.split(" | ", 2) for line in _TABLE.strip().splitlines())
GLOSSARY: dict[str, tuple[str, str]] = {name: (unit, what) for name, unit, what in _ROWS}
"""The unit of each metric, and what it is. If a logged name has three parts, its first two are the key."""

for _bin, _ in LENGTH_BINS:
    _low, _high = _bin.split("_")[1:]
    _steps = f"{_low} steps or more" if _high == "up" else f"{_low} to {_high} steps"
    for _name in ("train/logp_difference_mean", "train/tis_capped"):
        GLOSSARY[f"{_name.removesuffix('_mean')}_{_bin}"] = GLOSSARY[_name][0], f"`{_name}` in episodes of {_steps}."


def glossary_markdown() -> str:
    rows = [f"| `{name}` | {unit} | {what.replace('|', chr(92) + '|')} |" for name, (unit, what) in GLOSSARY.items()]
    return "\n".join(["| metric | unit | what it is |", "| --- | --- | --- |", *rows])
