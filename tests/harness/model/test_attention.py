"""Packed attention against one dense mask over the whole row, which says who sees whom."""

import ast
import re
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from transformers import Qwen2Config

from harness.model import attention
from harness.model.attention import Segments, choose_flash_attention, packed_attention

LENGTHS, PARENTS = (5, 3, 1, 7, 4, 2), (-1, 0, 0, -1, -1, 4)
HEADS, KV_HEADS, DIM = 4, 2, 8


def dense_mask(window):
    bounds = list(pairwise(torch.tensor([0, *LENGTHS]).cumsum(0).tolist()))
    mask = torch.zeros(sum(LENGTHS), sum(LENGTHS), dtype=torch.bool)
    for (start, stop), parent in zip(bounds, PARENTS, strict=True):
        history = list(range(*bounds[parent])) if parent >= 0 else []
        for token in range(start, stop):
            history.append(token)
            mask[token, history[-window:] if window else history] = True
    return mask


def inputs(device="cpu", dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    shapes = [(1, heads, sum(LENGTHS), DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return [torch.randn(s, generator=g, dtype=torch.float64).to(device, dtype).requires_grad_() for s in shapes]


def check(query, key, value, window, tolerance):
    segments = Segments(LENGTHS, PARENTS, query.device)
    module = torch.nn.Module()
    found, _ = packed_attention(module, query, key, value, None, scaling=0.4, sliding_window=window, segments=segments)
    right = scaled_dot_product_attention(
        *(x.double() for x in (query, key, value)),
        attn_mask=dense_mask(window).to(query.device),
        scale=0.4,
        enable_gqa=True,
    )
    right = right.transpose(1, 2)
    assert_close(found.double(), right, rtol=tolerance, atol=tolerance)
    weights = torch.arange(right.numel(), device=right.device).view_as(right).cos()
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), (query, key, value)),
        torch.autograd.grad((right * weights).sum(), (query, key, value)),
        strict=True,
    ):
        assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_each_token_sees_its_own_episode_and_nothing_later(window):
    check(*inputs(), window, 1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 3])
def test_one_kernel_for_all_segments_does_the_same(window):
    check(*inputs("cuda", torch.bfloat16), window, 0.03)


@pytest.mark.parametrize("fails_at", ["activate_flash_attention_impl", "_try_varlen"])
@pytest.mark.parametrize(
    ("capability", "works", "said"),
    [
        (9, ["FA3", "FA4"], "FA3 computes the attention"),
        (9, ["FA4"], "FA4 computes the attention, FA3 does not work (undefined symbol: _ZN3c104)"),
        (10, ["FA3", "FA4"], "FA4 computes the attention"),
        (10, [], "FA2 computes the attention, FA4 does not work (undefined symbol: _ZN3c104)"),
        (8, ["FA3", "FA4"], "FA2 computes the attention, the newest for this GPU"),
    ],
)
def test_the_first_flash_attention_that_works_is_taken(monkeypatch, capability, works, said, fails_at):
    def activate(name):
        using[:] = [name] if name in works or fails_at == "_try_varlen" else []
        attempt("", 16) if not using else None
        activated.append(name)

    def attempt(_, size):
        assert size == 16
        if not set(using) & set(works):
            raise RuntimeError("undefined symbol: _ZN3c104\nand more")

    using, activated = [], []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (capability, 0))
    monkeypatch.setattr(attention, "activate_flash_attention_impl", activate)
    monkeypatch.setattr(attention, "_try_varlen", attempt)
    monkeypatch.setattr(attention, "current_flash_attention_impl", lambda: using)
    monkeypatch.setattr(attention, "restore_flash_attention_impl", using.clear)
    config = Qwen2Config(hidden_size=64, num_attention_heads=4)
    heard = []
    assert choose_flash_attention("cuda", config, heard.append) == said
    assert len(heard) == activated.count("FA4")
    assert using == ([] if "FA2" in said else [said[:3]])
    assert choose_flash_attention("cpu", config, heard.append) == ""


@pytest.mark.campaign
def test_torch_calls_the_locked_flash_attention_4_as_it_is(tmp_path):
    lock = (Path(__file__).parents[3] / "requirements" / "vllm.txt").read_text("utf-8")
    pin = re.search(r"^flash-attn-4==\S+", lock, re.MULTILINE)[0]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", tmp_path, pin], check=True)
    [wheel] = tmp_path.glob("*.whl")
    theirs = functions(zipfile.ZipFile(wheel).read("flash_attn/cute/interface.py"))
    ours = functions((Path(torch.__file__).parent / "nn" / "attention" / "_fa4.py").read_bytes())
    for kernel, caller in (("_flash_attn_fwd", "_fa4_run_forward"), ("_flash_attn_bwd", "_fa4_run_backward")):
        [call] = (
            node
            for node in ast.walk(ours[caller])
            if isinstance(node, ast.Assign) and f"module.{kernel}" in ast.unparse(node)
        )
        named = {keyword.arg for keyword in call.value.keywords} - {None}
        named |= {key.value for node in ast.walk(ours[caller]) if isinstance(node, ast.Dict) for key in node.keys}
        assert named, "the keywords are written in another way"
        arguments = theirs[kernel].args
        assert named <= {argument.arg for argument in arguments.args + arguments.kwonlyargs}
        returns = [node.value for node in ast.walk(theirs[kernel]) if isinstance(node, ast.Return)]
        assert {len(value.elts) for value in returns} == {len(call.targets[0].elts)}


def functions(source):
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def test_a_kernel_is_tried_in_both_passes_with_grouped_heads_and_a_window(monkeypatch):
    def kernel(q, k, v, *_, **settings):
        asked.append((tuple(q.shape), tuple(k.shape), settings["window_size"]))
        return q * k.sum() * v.sum() * factor

    asked = []
    factor = 1.0
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    attention._try_varlen("cpu", 64)
    assert asked == [((16, 4, 64), (16, 2, 64), window) for window in ((-1, 0), (3, 0))]
    factor = float("nan")
    with pytest.raises(RuntimeError, match="not finite"):
        attention._try_varlen("cpu", 64)
