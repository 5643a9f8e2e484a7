"""A model with random weights has the shape that was asked for."""

from __future__ import annotations

import torch

from harness.policy.fresh import fresh_qwen2
from harness.policy.shape import ModelShape


def test_a_fresh_model_has_the_shape_and_the_type_that_were_asked_for() -> None:
    shape = ModelShape(50, 64, 96, 3, 4, 2, tied=False, positions=77)
    model = fresh_qwen2(shape, eos_id=7, dtype=torch.bfloat16)
    assert model.num_parameters() == shape.parameters
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    config = model.config
    assert (config.max_position_embeddings, config.num_key_value_heads, config.eos_token_id) == (77, 2, 7)
