"""The local policy on a tiny model made here: token space, log-probabilities, cache, limits."""

from __future__ import annotations

import functools
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="policy local needs torch")
transformers = pytest.importorskip("transformers", reason="policy local needs transformers")

from cuda_agent.agent.policies import make_policy  # noqa: E402
from cuda_agent.agent.policies.local import LocalPolicy  # noqa: E402
from cuda_agent.agent.policies.options import PolicyOptions, ToolFormat  # noqa: E402
from cuda_agent.agent.policies.sampling import Sampler, sampling_logprobs  # noqa: E402
from cuda_agent.agent.policies.tokenspace import TokenSpace  # noqa: E402
from cuda_agent.agent.policy import Message, Role  # noqa: E402
from cuda_agent.agent.textformat import instructions, render_call  # noqa: E402
from cuda_agent.agent.tools import Toolbox  # noqa: E402
from cuda_agent.config import EpisodeConfig  # noqa: E402
from cuda_agent.errors import PolicyError, UsageError  # noqa: E402
from cuda_agent.trajectory import Ending, TokenRecord, ToolCall  # noqa: E402

# As Qwen's: tools in the system message, calls as JSON in <tool_call>, answers in <tool_response>. Tools by
# name only, to be quick.
NATIVE_TEMPLATE = """\
{%- for m in messages -%}
{%- if m.role == 'system' -%}<|im_start|>system
{{ m.content }}
{%- if tools %} Tools:{% for t in tools %} {{ t.function.name }}{% endfor %}{% endif %}<|im_end|>
{% elif m.role == 'tool' -%}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else -%}<|im_start|>{{ m.role }}
{% if loop.first and tools %}Tools:{% for t in tools %} {{ t.function.name }}{% endfor %}
{% endif -%}
{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM_TEMPLATE = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHAT_TEMPLATE
)
ECHO = '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo hi"}}\n</tool_call>'


@functools.cache
def small_tokenizer(template: str | None = NATIVE_TEMPLATE) -> Any:
    """Byte pairs learnt from the text format's own instructions, and the tokens of ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    with tempfile.TemporaryDirectory() as folder, Toolbox(Path(folder), {}) as tools:
        corpus = instructions(tools.specs())
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        [corpus], trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(vocabulary: int, limit: int = 4096) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=limit,
        eos_token_id=None,
        bos_token_id=None,
        initializer_range=0.3,
    )
    return transformers.Qwen3ForCausalLM(config).eval()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from more, and loses much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    with Toolbox(Path(tmp_path_factory.mktemp("w")), {}) as tools:
        return tools.specs()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., LocalPolicy]]:
    def build(
        *, template: str | None = NATIVE_TEMPLATE, limit: int = 8192, stops: bool = False, **options: Any
    ) -> LocalPolicy:
        tokenizer = small_tokenizer(template)
        model = tiny_model(len(tokenizer), limit)
        chosen = {"max_tokens": 24, "seed": 1, "policy_version": "v7", **options}
        policy = LocalPolicy.from_model(model, tokenizer, options=PolicyOptions(**chosen), name="tiny")
        if not stops:  # random weights end an answer at random
            policy._stop_ids = set()
        return policy

    yield build


def fresh_logprobs(policy: LocalPolicy, ids: list[int], temperature: float, top_p: float) -> Any:
    """Of each id but the first, by one forward pass without a cache."""
    with torch.no_grad():
        logits = policy._sampler._model(input_ids=torch.tensor([ids])).logits[0]
    rows = [sampling_logprobs(row, temperature=temperature, top_p=top_p) for row in logits[:-1]]
    return [float(row[i]) for row, i in zip(rows, ids[1:], strict=True)]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9), (0.0, 1.0)])
def test_recorded_logprobs_equal_a_fresh_forward_pass(
    make: Any, episode: Any, temperature: float, top_p: float
) -> None:
    policy = make(temperature=temperature, top_p=top_p)
    done = episode(policy, config=EpisodeConfig(max_turns=4, max_format_errors=9))
    assert done.ending is Ending.TURN_LIMIT
    context: list[int] = []
    acted: list[tuple[int, float]] = []
    for turn in done.trajectory.turns:
        record = turn.tokens
        assert record and record.policy_version == "v7" and record.prompt_ids
        assert len(record.completion_ids) == len(record.logprobs) == 24
        context += record.prompt_ids
        acted += zip(range(len(context), len(context) + 24), record.logprobs, strict=True)
        context += record.completion_ids
    expected = fresh_logprobs(policy, context, temperature, top_p)
    for position, logprob in acted:
        assert logprob == pytest.approx(expected[position - 1], abs=1e-4)
    assert policy._sampler.num_fed == len(context) - 1, "every token was fed once: the cache is reused"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(make: Any, specs: list[Any]) -> None:
    policy = make()
    policy._sampler = Sampler(policy._sampler._model.cuda(), temperature=1.0, top_p=1.0, seed=1)
    tokens = policy.act([Message(Role.USER, "u")], specs).tokens
    policy._sampler._model.cpu()
    expected = fresh_logprobs(policy, [*tokens.prompt_ids, *tokens.completion_ids], 1.0, 1.0)[-24:]
    assert tokens.logprobs == pytest.approx(expected, abs=5e-3)


def test_sampled_ids_are_kept_though_their_text_tokenises_otherwise(make: Any, episode: Any) -> None:
    policy = make()
    done = episode(policy, config=EpisodeConfig(max_turns=2, max_format_errors=9))
    first, second = (turn.tokens for turn in done.trajectory.turns)
    decoded = policy._tokenizer.decode(list(first.completion_ids))
    again = policy._tokenizer(decoded, add_special_tokens=False)["input_ids"]
    assert tuple(again) != first.completion_ids, "the premise: random bytes are not valid text"
    messages = [
        Message(Role.USER, "x"),
        Message(Role.ASSISTANT, decoded, tokens=first),
        Message(Role.USER, "y"),
    ]
    old, _ = policy._space.context(messages, [], stop_ids=policy._stop_ids)
    assert tuple(old) == first.prompt_ids + first.completion_ids
    assert policy._tokenizer.decode(list(second.prompt_ids)).startswith("<|im_end|>\n<|im_start|>user\n")


def train(policy: LocalPolicy, ids: list[int], acted: list[int], steps: int = 150) -> None:
    """Make the tiny model say ``ids`` at the acted positions."""
    model = policy._sampler._model.train()
    labels = torch.tensor([[i if n in set(acted) else -100 for n, i in enumerate(ids)]])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        loss = model(input_ids=torch.tensor([ids]), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if float(loss.detach()) < 0.02:  # enough for the likeliest token
            break
    model.eval()


@pytest.mark.parametrize("native", [True, False])
def test_a_trained_model_acts_and_finishes(make: Any, episode: Any, specs: list[Any], native: bool) -> None:
    template = NATIVE_TEMPLATE if native else CHAT_TEMPLATE
    policy = make(template=template, stops=True, temperature=0.0, max_tokens=120)
    assert policy._space.is_native(specs) is native
    call = ToolCall("call_0_0", "Bash", {"command": "echo hi"})
    answers = [ECHO, "done"] if native else [render_call(call), "<finished>done</finished>"]
    end = policy._tokenizer.convert_tokens_to_ids("<|im_end|>")
    messages = [Message(Role.SYSTEM, "You are terse."), Message(Role.USER, "Make it fast.")]
    ids: list[int] = []
    acted: list[int] = []
    for answer in answers:
        _, new = policy._space.context(messages, specs, stop_ids=policy._stop_ids)
        completion = (*policy._tokenizer(answer, add_special_tokens=False)["input_ids"], end)
        acted += range(len(ids) + len(new), len(ids) + len(new) + len(completion))
        ids += [*new, *completion]
        record = TokenRecord(tuple(new), completion, (0.0,) * len(completion), "")
        messages += [
            Message(Role.ASSISTANT, "", (call,), tokens=record),
            Message(Role.TOOL, "hi", call_id=call.id),
        ]
    train(policy, ids, acted)
    done = episode(policy)
    assert done.ending is Ending.FINISHED
    first, last = done.trajectory.turns
    assert first.calls == (call,) and first.observations[0].text == "hi"
    assert first.tokens.completion_ids[-1] == end, "the stop token is acted, too"
    assert "done" in last.text and not last.malformed
    whole = [i for t in done.trajectory.turns for i in (*t.tokens.prompt_ids, *t.tokens.completion_ids)]
    assert whole == ids


def test_native_tools_only_where_the_template_can_be_read_back(specs: list[Any]) -> None:
    native = {
        t: TokenSpace(small_tokenizer(t), ToolFormat.AUTO).is_native(specs)
        for t in (NATIVE_TEMPLATE, CHAT_TEMPLATE)
    }
    assert native == {NATIVE_TEMPLATE: True, CHAT_TEMPLATE: False}
    foreign = NATIVE_TEMPLATE.replace("<tool_call>", "[CALL]")
    assert not TokenSpace(small_tokenizer(foreign), ToolFormat.AUTO).is_native(specs)
    assert not TokenSpace(small_tokenizer(NATIVE_TEMPLATE), ToolFormat.TEXT).is_native(specs)


@pytest.mark.parametrize("template", [None, NO_SYSTEM_TEMPLATE], ids=["no template", "no system role"])
def test_templates_that_lack_something(template: str | None, specs: list[Any]) -> None:
    tokenizer = small_tokenizer(template)
    space = TokenSpace(tokenizer, ToolFormat.AUTO)
    messages = [Message(Role.SYSTEM, "SYSTEM"), Message(Role.USER, "USER")]
    _, ids = space.context(messages, specs, stop_ids=set())
    text = tokenizer.decode(ids)
    assert text.index("SYSTEM") < text.index("<tool_call>") < text.index("USER")
    record = TokenRecord(tuple(ids), (1, 2), (0.0, 0.0), "")
    messages += [
        Message(Role.ASSISTANT, "x", tokens=record),
        Message(Role.TOOL, "RESULT"),
        Message(Role.USER, "MORE"),
    ]
    old, new = space.context(messages, specs, stop_ids=set())
    text = tokenizer.decode(new)
    assert old == [*ids, 1, 2] and text.index("RESULT") < text.index("MORE") and "USER" not in text


def test_the_stop_token_is_not_written_twice(specs: list[Any]) -> None:
    tokenizer = small_tokenizer()
    space = TokenSpace(tokenizer, ToolFormat.AUTO)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert space.end_of_answer() == end
    for completion, start in (((65, end), "\n<|im_start|>user"), ((65, 66), "<|im_end|>\n<|im_start|>user")):
        record = TokenRecord((1,), completion, (0.0, 0.0), "")
        messages = [
            Message(Role.USER, "u"),
            Message(Role.ASSISTANT, "A", tokens=record),
            Message(Role.TOOL, "r"),
        ]
        _, new = space.context(messages, specs, stop_ids={end})
        assert tokenizer.decode(new).startswith(start)


def test_exact_context_limit(make: Any, episode: Any) -> None:
    policy = make(max_tokens=100_000, limit=1000)
    done = episode(policy, config=EpisodeConfig(max_format_errors=99, max_context=100_000))
    assert done.ending is Ending.CONTEXT_LIMIT
    total = sum(len(t.tokens.prompt_ids) + len(t.tokens.completion_ids) for t in done.trajectory.turns)
    assert total == 1000, "to the last token, which is kept in the record"


def test_an_answer_cut_off_by_its_own_limit_is_malformed(make: Any, episode: Any) -> None:
    done = episode(make(max_tokens=5), config=EpisodeConfig(max_format_errors=2))
    assert done.ending is Ending.FORMAT_ERRORS
    assert "cut off after 5 tokens" in done.trajectory.turns[0].malformed[0]


def test_the_time_limit_stops_the_sampling(make: Any, episode: Any) -> None:
    started = time.monotonic()
    done = episode(
        make(max_tokens=100_000, limit=200_000), config=EpisodeConfig(max_context=200_000, time_limit_s=1.0)
    )
    assert done.ending is Ending.TIME_LIMIT and time.monotonic() - started < 5


def test_resume_goes_on_from_the_recorded_ids(make: Any, episode: Any) -> None:
    config = EpisodeConfig(max_turns=2, max_format_errors=9)
    first = episode(make(), config=config)
    policy = make(seed=2)
    second = episode(
        policy, history=first.trajectory.turns, config=EpisodeConfig(max_turns=3, max_format_errors=9)
    )
    ids = [i for t in second.trajectory.turns for i in (*t.tokens.prompt_ids, *t.tokens.completion_ids)]
    logprobs = fresh_logprobs(policy, ids, 1.0, 1.0)[-24:]
    assert second.trajectory.turns[2].tokens.logprobs == pytest.approx(logprobs, abs=1e-4)
    assert "shell is a new one" in policy._tokenizer.decode(
        list(second.trajectory.turns[2].tokens.prompt_ids)
    )


def test_a_history_without_ids_is_rendered_whole_and_says_so(
    make: Any, caplog: Any, specs: list[Any]
) -> None:
    policy = make()
    messages = [
        Message(Role.USER, "u"),
        Message(Role.ASSISTANT, "foreign words"),
        Message(Role.USER, "go on"),
    ]
    from cuda_agent.agent.policy import EpisodeContext
    from cuda_agent.task import Task

    with caplog.at_level(logging.WARNING):
        policy.start(EpisodeContext(Path(), Task("x"), "cpu"), messages)
    assert "tokenised anew" in caplog.text
    action = policy.act(messages, specs)
    assert "foreign words" in policy._tokenizer.decode(list(action.tokens.prompt_ids))
    messages += [Message(Role.ASSISTANT, action.text, tokens=action.tokens), Message(Role.USER, "more")]
    second = policy.act(messages, specs)
    assert "foreign words" not in policy._tokenizer.decode(list(second.tokens.prompt_ids))
    assert second.context_tokens == sum(len(a.tokens.prompt_ids) + 24 for a in (action, second))


def test_new_weights_drop_the_cache(make: Any, specs: list[Any]) -> None:
    policy = make()
    messages = [Message(Role.USER, "u")]
    first = policy.act(messages, specs)
    with torch.no_grad():
        for parameter in policy._sampler._model.parameters():
            parameter.mul_(1.1)
    policy.weights_changed("v8")
    messages += [Message(Role.ASSISTANT, "", tokens=first.tokens), Message(Role.USER, "v")]
    second = policy.act(messages, specs)
    ids = [
        *first.tokens.prompt_ids,
        *first.tokens.completion_ids,
        *second.tokens.prompt_ids,
        *second.tokens.completion_ids,
    ]
    assert second.tokens.policy_version == "v8"
    assert second.tokens.logprobs == pytest.approx(fresh_logprobs(policy, ids, 1.0, 1.0)[-24:], abs=1e-4)


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    logits = torch.log(torch.tensor([0.1, 0.5, 0.15, 0.25]))
    kept = sampling_logprobs(logits, temperature=1.0, top_p=0.7).exp()
    assert kept.tolist() == pytest.approx([0.0, 2 / 3, 0.0, 1 / 3])
    assert sampling_logprobs(logits, temperature=1.0, top_p=0.01).exp().tolist() == pytest.approx(
        [0, 1, 0, 0]
    )
    sharper = sampling_logprobs(logits, temperature=0.5, top_p=1.0).exp()
    assert sharper.tolist() == pytest.approx([p * p / 0.345 for p in (0.1, 0.5, 0.15, 0.25)], rel=1e-4)


def test_sampling_follows_the_distribution() -> None:
    model = tiny_model(8)
    sampler = Sampler(model, temperature=1.0, top_p=1.0, seed=3)
    with torch.no_grad():
        expected = torch.softmax(model(input_ids=torch.tensor([[1, 2]])).logits[0, -1], -1)
    draws = [sampler.sample([1, 2], max_tokens=1, stop_ids=set()).ids[0] for _ in range(600)]
    found = torch.bincount(torch.tensor(draws), minlength=8) / 600
    assert float((found - expected).abs().max()) < 0.08
    same = [
        Sampler(model, temperature=1.0, top_p=1.0, seed=5).sample([1], max_tokens=9, stop_ids=set())
        for _ in "ab"
    ]
    assert same[0] == same[1], "a seed repeats"


def test_from_a_folder(tmp_path: Path, specs: list[Any]) -> None:
    folder = tmp_path / "checkpoint-3"
    tokenizer = small_tokenizer()
    tiny_model(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    policy = make_policy(f"local:{folder}", max_tokens=8, device="cpu", dtype="float32")
    action = policy.act([Message(Role.USER, "hello")], specs)
    assert policy.name == f"local:{folder}" and action.tokens.policy_version == "checkpoint-3"
    assert action.usage.completion_tokens == len(action.tokens.completion_ids) <= 8
    policy.close()
    policy.close()


def test_no_model_and_a_broken_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model at"):
        make_policy(f"local:{tmp_path / 'nowhere'}")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PolicyError, match="cannot load the model"):
        make_policy(f"local:{tmp_path}")
