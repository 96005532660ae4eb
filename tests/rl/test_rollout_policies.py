"""Episodes of a batch sample through one engine: the trainer's weights, exact numbers, freed memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from small_models import small_model
from training_run import byte_tokenizer

from cuda_agent.agent.policy import Message, Policy, Role
from cuda_agent.rl.batches import rollout_of
from cuda_agent.rl.config_file import parse_config
from cuda_agent.rl.networks import NetworkOptions, Networks
from cuda_agent.rl.policies import RolloutPolicies
from cuda_agent.rl.rollouts import pack
from cuda_agent.trajectory import Header, TokenRecord, Trajectory, Turn

CONTEXT = 200


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture
def networks(tokenizer: Any) -> Networks:
    model = small_model(vocabulary=len(tokenizer))
    with torch.no_grad():
        model.get_input_embeddings().weight.div_(3)
    networks = Networks(model, NetworkOptions(rank=2)).eval()
    with torch.no_grad():
        for weight in networks.actor_weights():
            weight.normal_(std=0.3)
    return networks


def policies_of(networks: Networks, tokenizer: Any, **table: Any) -> RolloutPolicies:
    config = parse_config({"generation": table, "rollout": {"parallel": 4, "max_answer": 12}})
    return RolloutPolicies(networks.model, tokenizer, config, context=CONTEXT, version="step-1")


def turns_of(policy: Policy, words: str) -> list[TokenRecord]:
    """Two turns of an episode."""
    messages = [Message(Role.USER, words)]
    first = policy.act(messages, ())
    messages += [Message(Role.ASSISTANT, first.text, tokens=first.tokens), Message(Role.USER, "once more")]
    second = policy.act(messages, ())
    assert first.tokens and second.tokens
    return [first.tokens, second.tokens]


def together(policies: RolloutPolicies, number: int) -> list[list[TokenRecord]]:
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(lambda n: turns_of(policies(n), f"task {n}"), range(number)))


def gaps(networks: Networks, episodes: list[list[TokenRecord]]) -> torch.Tensor:
    """|recorded - recomputed by the trainer| of each acted token."""
    header = Header(task_hash="t", policy="p", backend="cpu", track="matched", system="", prompt="")
    rollouts = [
        rollout_of(
            Trajectory(header, tuple(Turn(n, "", tokens=record) for n, record in enumerate(records))), 1.0
        )
        for records in episodes
    ]
    with torch.no_grad():
        recomputed, _ = networks.logprobs(pack(rollouts))
    recorded = [p for records in episodes for record in records for p in record.logprobs]
    return (recomputed - torch.tensor(recorded)).abs()


@pytest.mark.parametrize("exact", [True, False])
def test_recorded_logprobs_are_the_trainers(networks: Networks, tokenizer: Any, exact: bool) -> None:
    """With the adapter unmerged, in a batch and alone."""
    with policies_of(networks, tokenizer, exact_on_cpu=exact) as policies:
        episodes = together(policies, 6)
    assert gaps(networks, episodes).max() < 1e-4
    assert {record.policy_version for records in episodes for record in records} == {"step-1"}
    with torch.no_grad():
        for weight in networks.actor_weights():
            weight.mul_(0.5)  # other weights than those that sampled
    assert gaps(networks, episodes).mean() > 1e-2


def test_an_episode_is_the_same_to_the_bit_in_any_company(networks: Networks, tokenizer: Any) -> None:
    with policies_of(networks, tokenizer) as policies:
        beside = together(policies, 6)
    alone = []
    for number in reversed(range(6)):
        with policies_of(networks, tokenizer, slots=1) as policies:
            alone.append(turns_of(policies(number), f"task {number}"))
    assert alone[::-1] == beside


def test_batched_turns_feed_only_what_is_new(networks: Networks, tokenizer: Any) -> None:
    with policies_of(networks, tokenizer, exact_on_cpu=False) as policies:
        first, second = turns_of(policies(1), "task")
        facts = policies.facts()
    # The last token of an answer was drawn, not fed: it is fed with the next turn.
    assert facts["prompt_tokens_fed"] == len(first.prompt_ids) + 1 + len(second.prompt_ids)
    assert facts["prompt_tokens_reused"] == len(first.prompt_ids) + len(first.completion_ids) - 1
    assert facts["sampled_tokens"] == len(first.completion_ids) + len(second.completion_ids)
    assert facts["tokens_per_s"] > 0


def test_the_engine_is_made_when_needed_and_freed(networks: Networks, tokenizer: Any) -> None:
    with policies_of(networks, tokenizer) as unused:
        pass
    assert unused.facts() == {}
    attention = networks.model.config._attn_implementation
    with policies_of(networks, tokenizer) as policies:
        turns_of(policies(0), "task")
        assert any(thread.name == "generation" for thread in threading.enumerate())
        engine = policies._engine
    assert engine is not None
    assert engine._decoder._cache.keys == []
    assert not any(thread.name == "generation" for thread in threading.enumerate())
    assert networks.model.config._attn_implementation == attention


def test_plain_is_the_model_alone(networks: Networks, tokenizer: Any) -> None:
    with policies_of(networks, tokenizer, engine="plain") as policies:
        episodes = [turns_of(policies(3), "task")]
        assert policies.facts() == {}
    assert gaps(networks, episodes).max() < 1e-4
