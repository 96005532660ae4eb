"""Our engine against fresh full passes of the same model."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from generation_model import Bytes, full_logprobs, greedy_ids, tiny_model

from cuda_agent.errors import InfrastructureError, UsageError
from cuda_agent.generation.contract import FinishReason, GenerationRequest, SamplingParams
from cuda_agent.generation.slots import SlotEngine
from cuda_agent.rl import attention, lora

_STARTS = {3: 5, 90: 17, 40: 1, 7: 30, 200: 9}
PROMPTS = [tuple(range(start, start + size)) for start, size in _STARTS.items()]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture
def engine(model: Any) -> Iterator[SlotEngine]:
    made = SlotEngine(model, Bytes(), num_slots=2, length=96, policy_version="v0")
    yield made
    made.close()


def request(prompt: tuple[int, ...], **params: Any) -> GenerationRequest:
    return GenerationRequest(prompt, SamplingParams(**params))


def test_greedy_tokens_are_those_of_full_passes(engine: SlotEngine, model: Any) -> None:
    """Five prompts of different lengths and ends through two slots."""
    sizes = (12, 3, 20, 7, 1)
    asked = [request(p, max_tokens=n, temperature=0.0) for p, n in zip(PROMPTS, sizes, strict=True)]
    for prompt, size, made in zip(PROMPTS, sizes, engine.generate(asked), strict=True):
        assert list(made.ids) == greedy_ids(model, prompt, size)
        assert made.finish is FinishReason.LENGTH


def test_logprobs_of_sampled_tokens_are_those_of_full_passes(engine: SlotEngine, model: Any) -> None:
    made = engine.generate([request(p, max_tokens=20, seed=n) for n, p in enumerate(PROMPTS)])
    for prompt, one in zip(PROMPTS, made, strict=True):
        torch.testing.assert_close(
            torch.tensor(one.logprobs), full_logprobs(model, prompt, one.ids), rtol=0, atol=1e-4
        )
    assert len({one.ids for one in made}) == len(PROMPTS)


def test_a_seed_gives_the_same_tokens_in_any_company(engine: SlotEngine) -> None:
    asked = [request(p, max_tokens=12, seed=n) for n, p in enumerate(PROMPTS)]
    together = engine.generate(asked)
    assert [engine.generate([one])[0].ids for one in asked] == [one.ids for one in together]


def test_tokens_are_drawn_as_often_as_the_model_says(model: Any) -> None:
    engine = SlotEngine(model, num_slots=8, length=32)
    prompt = PROMPTS[0]
    drawn = Counter(
        one.ids[0] for one in engine.generate([request(prompt, max_tokens=1, seed=n) for n in range(2000)])
    )
    engine.close()
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    likely = expected.argsort(descending=True)[:4].tolist()
    for token in likely:
        p = float(expected[token])
        assert abs(drawn[token] / 2000 - p) < 5 * (p * (1 - p) / 2000) ** 0.5 + 1e-9


def test_nucleus_and_temperature_report_what_was_drawn_from(engine: SlotEngine, model: Any) -> None:
    (made,) = engine.generate([request(PROMPTS[1], max_tokens=1, temperature=2.0, top_p=0.5, seed=1)])
    with torch.no_grad():
        logprobs = (model(torch.tensor([PROMPTS[1]])).logits[0, -1] / 2).log_softmax(-1)
    kept: list[int] = []
    for token in logprobs.argsort(descending=True).tolist():
        if sum(float(logprobs[k].exp()) for k in kept) >= 0.5:
            break
        kept.append(token)
    assert made.ids[0] in kept
    expected = float(logprobs[made.ids[0]] - logprobs[kept].logsumexp(0))
    assert made.logprobs[0] == pytest.approx(expected, abs=1e-4)


def test_the_next_turn_feeds_only_what_is_new(engine: SlotEngine, model: Any) -> None:
    first = engine.generate([request(PROMPTS[3], max_tokens=10, seed=5)])[0]
    fed = engine.use.num_fed
    second_prompt = (*PROMPTS[3], *first.ids, 1, 2, 3)
    other = request(PROMPTS[0], max_tokens=4, seed=6)
    second, _ = engine.generate([request(second_prompt, max_tokens=10, temperature=0.0), other])
    assert second.num_reused == len(PROMPTS[3]) + 9  # the last token was drawn, never fed
    assert engine.use.num_fed - fed == 4 + len(PROMPTS[0])
    assert list(second.ids) == greedy_ids(model, second_prompt, 10)


def test_a_prompt_that_another_has_is_copied_and_both_go_on(engine: SlotEngine, model: Any) -> None:
    """Two samples of one prompt, the second while the first is under way; then the first one's next turn."""
    prompt = PROMPTS[3]
    asked = [request(prompt, max_tokens=12, seed=5), request(prompt, max_tokens=12, temperature=0.0)]
    first, second = engine.generate(asked)
    assert (first.num_reused, second.num_reused) == (0, len(prompt) - 1)
    assert engine.use.num_fed == len(prompt) + 1
    assert list(second.ids) == greedy_ids(model, prompt, 12)
    expected = full_logprobs(model, prompt, first.ids)
    torch.testing.assert_close(torch.tensor(first.logprobs), expected, rtol=0, atol=1e-4)
    again = (*prompt, *first.ids, 9)
    (turn,) = engine.generate([request(again, max_tokens=8, temperature=0.0)])
    assert turn.num_reused == len(prompt) + 11
    assert list(turn.ids) == greedy_ids(model, again, 8)


def test_a_third_sample_takes_no_turn_from_the_first(model: Any) -> None:
    engine = SlotEngine(model, num_slots=2, length=96)
    first = engine.generate([request(PROMPTS[3], max_tokens=6, seed=5)])[0]
    engine.generate([request(PROMPTS[3], max_tokens=6, seed=6)])  # first is idle: copied from, not taken
    again = (*PROMPTS[3], *first.ids, 9)
    (turn,) = engine.generate([request(again, max_tokens=8, temperature=0.0)])
    engine.close()
    assert turn.num_reused == len(PROMPTS[3]) + 5
    assert list(turn.ids) == greedy_ids(model, again, 8)


def test_idle_slots_keep_what_they_hold_while_others_decode(engine: SlotEngine, model: Any) -> None:
    first = engine.generate([request(PROMPTS[3], max_tokens=4, temperature=0.0)])[0]
    engine.generate([request(PROMPTS[0], max_tokens=40, seed=1)])  # in the other slot
    again = (*PROMPTS[3], *first.ids, 9)
    second = engine.generate([request(again, max_tokens=8, temperature=0.0)])[0]
    assert second.num_reused > 0
    assert list(second.ids) == greedy_ids(model, again, 8)


def test_a_long_completion_does_not_hold_the_short_ones(engine: SlotEngine) -> None:
    slow = engine.submit(request(PROMPTS[0], max_tokens=90, seed=0))
    order: list[str] = []
    slow.add_done_callback(lambda _: order.append("slow"))
    short = [engine.submit(request(PROMPTS[2], max_tokens=2, seed=n)) for n in range(6)]
    for future in short:
        future.add_done_callback(lambda _: order.append("short"))
    for future in (*short, slow):
        future.result(timeout=60)
    assert order == ["short"] * 6 + ["slow"]


def test_endings_are_named(engine: SlotEngine, model: Any) -> None:
    expected = greedy_ids(model, PROMPTS[1], 12)
    stop = expected[4]
    number = expected.index(stop) + 1
    text = bytes(expected[2:5]).decode("latin-1")
    asked = [
        request(PROMPTS[1], max_tokens=30, temperature=0.0, stop_ids=frozenset({stop})),
        request(PROMPTS[1], max_tokens=30, temperature=0.0, stop_strings=(text,)),
        request(PROMPTS[3], max_tokens=500, seed=0),
        GenerationRequest(PROMPTS[0], SamplingParams(max_tokens=50), deadline=time.monotonic()),
    ]
    by_id, by_text, full, late = engine.generate(asked)
    assert (by_id.finish, len(by_id.ids)) == (FinishReason.STOP_ID, number)
    assert by_text.finish is FinishReason.STOP_STRING
    assert bytes(by_text.ids).decode("latin-1").endswith(text)
    assert (full.finish, len(full.ids)) == (FinishReason.CONTEXT, 96 - len(PROMPTS[3]))
    assert (late.finish, len(late.ids)) == (FinishReason.DEADLINE, 1)


def test_new_weights_are_used_and_named() -> None:
    model = tiny_model()
    engine = SlotEngine(model, num_slots=1, length=64, policy_version="a")
    asked = request(PROMPTS[1], max_tokens=8, temperature=0.0)
    before = engine.generate([asked])[0]
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.normal_()
    engine.weights_changed("b")
    after = engine.generate([asked])[0]
    engine.close()
    assert (before.policy_version, after.policy_version) == ("a", "b")
    assert after.num_reused == 0
    assert list(after.ids) == greedy_ids(model, PROMPTS[1], 8) != list(before.ids)


def test_an_unmerged_adapter_and_the_attention_of_training_stay_as_they_are() -> None:
    model = tiny_model()
    plain = greedy_ids(model, PROMPTS[1], 8)
    lora.add_adapters(model.base_model, ("actor",), rank=4, alpha=8.0)
    for _, layer in lora.adapted_layers(model.base_model):
        layer.active = "actor"
        torch.nn.init.normal_(layer.b["actor"])
    model.set_attn_implementation(attention.register())
    engine = SlotEngine(model, num_slots=2, length=64)
    made = engine.generate([request(PROMPTS[1], max_tokens=8, temperature=0.0)])[0]
    engine.close()
    assert model.config._attn_implementation == attention.NAME
    assert list(made.ids) == greedy_ids(model, PROMPTS[1], 8) != plain


def test_what_cannot_be_done_is_said_in_a_line(engine: SlotEngine, model: Any) -> None:
    with pytest.raises(UsageError, match="96 tokens in a context of 96"):
        engine.generate([request(tuple([1] * 96))])
    without = SlotEngine(model, num_slots=1, length=16)
    with pytest.raises(UsageError, match="tokenizer"):
        without.generate([request((1,), stop_strings=("x",))])
    without.close()
    without.close()
    with pytest.raises(UsageError, match="closed"):
        without.generate([request((1,))])


def test_closing_fails_what_is_under_way_and_ends_the_thread(model: Any) -> None:
    engine = SlotEngine(model, num_slots=1, length=128)
    futures = [engine.submit(request(PROMPTS[0], max_tokens=120, seed=n)) for n in range(3)]
    engine.close()
    assert not any(thread.name == "generation" for thread in threading.enumerate())
    assert isinstance(futures[-1].exception(timeout=5), InfrastructureError)


def test_callers_of_many_threads_get_their_own(engine: SlotEngine, model: Any) -> None:
    made: dict[int, tuple[int, ...]] = {}

    def ask(number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        made[number] = engine.generate([request(prompt, max_tokens=6, temperature=0.0)])[0].ids

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [tuple(greedy_ids(model, prompt, 6)) for prompt in PROMPTS]
    assert made == {n: expected[n % len(PROMPTS)] for n in range(10)}
