"""Captured graphs against fresh full passes, on a GPU."""

from __future__ import annotations

import pytest
import torch
from generation_model import full_logprobs, greedy_ids, tiny_model

from cuda_agent.generation.contract import GenerationRequest, SamplingParams
from cuda_agent.generation.slots import SlotEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_graphs_give_the_tokens_of_full_passes() -> None:
    """Over two read lengths, with a reused prefix and new weights in between."""
    cpu = tiny_model(positions=1024)
    gpu = tiny_model(positions=1024).cuda()
    engine = SlotEngine(gpu, num_slots=2, length=700)
    prompts = [tuple(n % 250 for n in range(start, start + size)) for start, size in ((3, 240), (9, 20))]
    for _ in range(2):
        asked = [GenerationRequest(p, SamplingParams(max_tokens=40, temperature=0.0)) for p in prompts]
        for prompt, made in zip(prompts, engine.generate(asked), strict=True):
            assert list(made.ids) == greedy_ids(cpu, prompt, 40)
            expected = full_logprobs(cpu, prompt, made.ids)
            torch.testing.assert_close(torch.tensor(made.logprobs), expected, rtol=0, atol=1e-3)
        with torch.no_grad():
            for model in (cpu, gpu):
                model.model.layers[0].mlp.down_proj.weight.neg_()
        engine.weights_changed("next")
    engine.close()
