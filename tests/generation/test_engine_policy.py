"""A local policy that samples through an engine is the one that samples from the model."""

from __future__ import annotations

from typing import Any

import pytest
from generation_model import VOCABULARY, tiny_model

from cuda_agent.agent.policies.local import LocalPolicy
from cuda_agent.agent.policies.options import PolicyOptions
from cuda_agent.agent.policy import Action, Message, Policy, Role
from cuda_agent.generation.slots import SlotEngine


def byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert len(alphabet) == VOCABULARY
    core = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="~")


def two_turns(policy: Policy) -> list[Action]:
    messages = [Message(Role.USER, "add two arrays")]
    first = policy.act(messages, ())
    messages += [Message(Role.ASSISTANT, first.text, tokens=first.tokens), Message(Role.USER, "again")]
    return [first, policy.act(messages, ())]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_engine_gives_the_tokens_and_logprobs_of_the_model(temperature: float) -> None:
    model, tokenizer = tiny_model(positions=256), byte_tokenizer()
    options = PolicyOptions(temperature=temperature, max_tokens=12, seed=4, policy_version="v7")
    engine = SlotEngine(model, tokenizer, num_slots=2, length=256)
    shared = LocalPolicy.from_engine(engine, model, tokenizer, options=options)
    beside = LocalPolicy.from_engine(engine, model, tokenizer, options=options)
    turns, again = two_turns(shared), two_turns(beside)
    shared.close()  # the engine is not the policy's
    alone = two_turns(LocalPolicy.from_model(model, tokenizer, options=options))
    engine.close()
    for turn, other, expected in zip(turns, again, alone, strict=True):
        assert turn.tokens and other.tokens and expected.tokens
        assert turn.tokens.policy_version == "v7"
        assert turn.tokens.prompt_ids == other.tokens.prompt_ids
        assert turn.tokens.completion_ids == other.tokens.completion_ids
        # Equal up to rounding: the second policy's prompts were there already.
        assert turn.tokens.logprobs == pytest.approx(other.tokens.logprobs, abs=1e-4)
        if temperature == 0.0:
            assert turn.tokens.completion_ids == expected.tokens.completion_ids
            assert turn.tokens.logprobs == pytest.approx(expected.tokens.logprobs, abs=1e-4)
