"""Servers that die, come back or are set up wrongly: stand-ins for every test run, and real ones where vLLM is."""

import copy
import re
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from small_model import ask, drain, forward_logprobs
from transformers import MixtralConfig, MixtralForCausalLM

from eh_gym.errors import ConfigError, SamplerError
from harness.sampling.vllm.http import ServerGone, VLLMServer
from harness.sampling.vllm.server import VLLMServerSampler
from harness.sampling.vllm.settings import check_server
from harness.sampling.weights import SampledWeights
from harness.types.sampler import sample_all


@pytest.fixture
def model(made):
    return copy.deepcopy(made("transformers")[0])


@pytest.fixture
def sampler(model, pair):
    return VLLMServerSampler(model, [server.url for server in pair])


def test_an_episode_stays_with_its_server_and_a_new_one_goes_where_fewest_are(sampler, pair):
    sample_all(sampler, [ask(s, [s], seed=s) for s in range(6)])
    sample_all(sampler, [ask(s, [s, 2], seed=s) for s in range(6)])
    a, b = (sorted(server.seeds) for server in pair)
    assert (a, b) == ([0, 0, 2, 2, 4, 4], [1, 1, 3, 3, 5, 5])
    for session in (0, 2):
        sampler.end_session(session)
    sample_all(sampler, [ask(s, [s], seed=s) for s in (10, 11)])
    assert {10, 11} < set(pair[0].seeds)


def test_the_servers_say_how_much_their_caches_hold(model, pair):
    urls, cache = [server.url for server in pair], pair[0].settings["cache_config"]
    cache |= {"num_gpu_blocks": 100, "block_size": 16}
    assert VLLMServerSampler(model, urls).cache_of(0) == (urls[0], 1600)
    assert VLLMServerSampler(model, urls, sharers=4).cache_of(0) == (urls[0], 400)
    cache["kv_cache_size_tokens"] = 437
    pair[0].settings["parallel_config"]["data_parallel_size"] = 2  # the tokens are those of one of the engines
    sampler = VLLMServerSampler(model, urls)
    caches = [(urls[0], 874), (urls[1], 0)]
    assert [sampler.cache_of(session) for session in (0, 1, 0, 1)] == 2 * caches
    sample_all(sampler, [ask(s, [s], seed=s) for s in (0, 1)])  # where they were said to be
    assert (pair[0].seeds, pair[1].seeds) == ([0], [1])


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"logprobs": None}, "127.0.0.1.*docs/vllm.md.*NoneType"),
        ({"logprobs": {"content": []}}, "docs/vllm.md.*zip"),
        ({"weight_versions": None}, "docs/vllm.md"),
    ],
)
def test_an_answer_without_what_training_needs_is_refused_with_a_sentence(sampler, monkeypatch, changed, names):
    generate = VLLMServer.generate
    monkeypatch.setattr(VLLMServer, "generate", lambda *arguments: generate(*arguments) | changed)
    with pytest.raises(SamplerError, match=names):
        sample_all(sampler, [ask(0, [1])])


def test_the_requests_of_a_dead_server_go_elsewhere_with_their_seeds(sampler, pair):
    pair[1].go.clear()
    for s in range(8):
        sampler.submit(ask(s, [s + 1], seed=s))
    done = []
    while len(done) < 4:
        done += sampler.step()
    assert sampler.pending == 4
    pair[1].dead = True
    pair[1].go.set()
    done += drain(sampler)
    assert sorted(r.session for r, _ in done) == list(range(8))
    assert all(sample.ids == [request.seed] * 6 for request, sample in done)
    assert sorted(pair[0].seeds) == list(range(8))
    sample_all(sampler, [ask(s, [s + 1, 2], seed=s) for s in range(8)])  # the next turns do not try it again
    assert len(pair[1].seeds) == 4


@pytest.mark.parametrize("samples", [True, False])
def test_a_request_that_waits_for_its_turn_does_not_bury_a_server_that_samples_for_others(pair, monkeypatch, samples):
    def sample(prompt, sampling):
        time.sleep(sampling["wait"])
        return prompt, [-0.5]

    def others():
        for _ in range(12):
            server.generate("other", [2], {"wait": 0.1}) if samples else server.weight_version()

    monkeypatch.setattr("harness.sampling.vllm.http.CALL_S", 0.3)
    monkeypatch.setattr(pair[0], "sample", sample)
    server = VLLMServer(pair[0].url)
    thread = threading.Thread(target=others)
    thread.start()
    try:
        if samples:
            assert server.generate("a", [1], {"wait": 1.2})["token_ids"] == [1]
        else:  # its engine hangs, although it answers other calls
            with pytest.raises(ServerGone, match=r"POST /inference.*nothing in 0\.3 s"):
                server.generate("a", [1], {"wait": 1.2})
    finally:
        thread.join()


def test_a_server_that_is_back_takes_part_after_the_next_weight_update(sampler, pair):
    pair[1].dead = True
    sample_all(sampler, [ask(s, [s + 1], seed=s) for s in range(4)])
    sampler.weights_changed()
    pair[1].dead = False
    assert sampler.weights_changed() == 2
    assert (pair[0].version, pair[1].version) == ("2", "2")
    before = len(pair[1].seeds)
    samples = sample_all(sampler, [ask(s, [s + 1], seed=s) for s in range(10, 20)])
    assert len(pair[1].seeds) > before
    assert {s.versions for s in samples} == {((2, 6),)}


def test_a_server_that_was_started_again_between_two_requests_is_not_sampled_from(sampler, pair):
    pair[0].forget()
    samples = sample_all(sampler, [ask(s, [s + 1], seed=s) for s in range(4)])
    assert [(sample.ids[0], sample.policy_version) for sample in samples] == [(s, 0) for s in range(4)]
    assert sorted(pair[1].seeds) == [0, 1, 2, 3]
    sampler.weights_changed()
    assert pair[0].version == "1"


@pytest.mark.parametrize("call", ["/pause", "/collective_rpc"])
def test_a_server_that_fails_in_an_update_gives_up_its_requests(sampler, pair, call):
    pair[1].go.clear()
    for s in range(4):
        sampler.submit(ask(s, [s + 1], seed=s))
    pair[1].refuse[call] = 500
    sampler.weights_changed()
    done = drain(sampler)  # though the failed server does not answer
    pair[1].go.set()
    for _ in range(20):
        time.sleep(0.01)
        done += sampler.step()  # late answers are not taken twice
    assert sorted(r.session for r, _ in done) == [0, 1, 2, 3]
    assert sorted(pair[0].seeds) == [0, 1, 2, 3]


def test_without_a_server_left_the_run_ends_with_a_sentence(sampler, pair):
    for server in pair:
        server.dead = True
    with pytest.raises(SamplerError, match=r"servers.*--resume"):
        sample_all(sampler, [ask(s, [s + 1]) for s in range(3)])
    with pytest.raises(SamplerError, match="received the weights"):
        sampler.weights_changed()


def test_the_end_of_a_run_drops_what_servers_still_sample(sampler, pair):
    pair[0].go.clear()
    sampler.submit(ask(0, [1]))
    weights = SampledWeights(SimpleNamespace(model=sampler._model), ahead=False, ranks=SimpleNamespace(sharded=False))
    weights._sampler = sampler
    threading.Timer(0.2, pair[0].go.set).start()
    weights.close()
    assert "/inference/v1/abort_requests" in [path for path, _ in pair[0].calls]
    assert sampler.pending == 0


@pytest.mark.parametrize(
    ("part", "key", "value", "names"),
    [
        ("model_config", "logprobs_mode", "raw_logprobs", "--logprobs-mode processed_logprobs"),
        ("model_config", "dtype", "torch.bfloat16", "--hf-overrides"),
        ("parallel_config", "worker_extension_cls", "", "--worker-extension-cls harness"),
        ("scheduler_config", "enable_chunked_prefill", True, "--no-enable-chunked-prefill"),
    ],
)
def test_a_server_set_up_otherwise_is_refused(model, pair, part, key, value, names):
    pair[0].settings[part][key] = value
    with pytest.raises(ConfigError, match=names):
        VLLMServerSampler(model, [pair[0].url])


def test_addresses_versions_and_lengths_are_checked(model, pair, monkeypatch):
    for wrong in ("gpu1:8000", "http://gpu1:8000/v1", "http://gpu1:80a0", "http://gpu1:99999", "http://[::1"):
        with pytest.raises(ConfigError, match=f"'{re.escape(wrong)}' is no address"):
            VLLMServerSampler(model, [wrong])
    with pytest.raises(ConfigError, match=r"max_context.*2..100"):
        VLLMServerSampler(model, [pair[0].url], max_context=101)
    settings, pair[0].settings = pair[0].settings, {}
    with pytest.raises(ConfigError, match=r"/server_info without vLLM's settings.*model_config"):
        VLLMServerSampler(model, [pair[0].url])
    pair[0].settings, pair[0].vllm = settings, "0.34.0"
    with pytest.raises(ConfigError, match=r"expected vLLM 0\.32\.x or 0\.33\.x .*got 0\.34\.0"):
        VLLMServerSampler(model, [pair[0].url])
    pair[0].vllm = "0.33.0"
    monkeypatch.setattr("harness.sampling.vllm.settings.version", lambda _: "0.32.0")
    VLLMServerSampler(model, [pair[0].url])  # the file that carries the weights is any version's
    with pytest.raises(ConfigError, match=r"expected vLLM 0\.32\.x at .*got 0\.33\.0"):
        check_server(VLLMServer(pair[0].url), over_nccl=True)
    pair[0].vllm = "0.32.0"
    pair[0].refuse["/server_info"] = 404
    with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
        VLLMServerSampler(model, [pair[0].url])
    pair[1].dead = True
    with pytest.raises(ConfigError, match="no vLLM server answers"):
        VLLMServerSampler(model, [pair[1].url])


def test_a_model_whose_weights_vllm_would_not_know_is_refused(pair):
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = MixtralForCausalLM(MixtralConfig(**sizes, **heads, num_local_experts=2))
    assert "model.layers.0.mlp.experts.down_proj" in model.state_dict()  # vLLM has block_sparse_moe there
    with pytest.raises(ConfigError, match=r"'mixtral'.*--sampler transformers"):
        VLLMServerSampler(model, [pair[0].url])


def test_a_real_server_killed_midway_loses_nothing_and_comes_back(servers, model):
    sampler = VLLMServerSampler(model, [server.url for server in servers])
    requests = [ask(s, [1 + s % 5, 2, 3], seed=s, max_tokens=100, stop_ids=frozenset()) for s in range(40)]
    undisturbed = sample_all(sampler, requests)
    for s in range(40):
        sampler.end_session(s)
    for request in requests[:20]:
        sampler.submit(request)
    done = {request.session: sample for request, sample in sampler.step()}
    servers[1].hold()  # what it has from now on it cannot answer
    for request in requests[20:]:
        sampler.submit(request)
    servers[1].kill()
    done |= {request.session: sample for request, sample in drain(sampler)}
    assert [done[s].ids for s in range(40)] == [sample.ids for sample in undisturbed]

    servers[1].start()
    servers[1].wait()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.8)
    sampler.weights_changed()
    servers[0].kill()  # so that the one that came back must do it all
    for request, sample in zip(requests, sample_all(sampler, requests), strict=True):
        assert sample.logprobs == pytest.approx(forward_logprobs(model, list(request.prompt_ids), sample.ids), abs=1e-4)
        assert sample.versions == ((1, 100),)


def test_running_requests_are_paused_while_the_weights_change(sampler, pair):
    pair[0].calls.clear()
    sampler.weights_changed()
    assert [path for path, _ in pair[0].calls] == ["/pause", "/collective_rpc", "/update_weight_version", "/resume"]
