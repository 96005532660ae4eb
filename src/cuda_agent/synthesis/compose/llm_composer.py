"""The composer that asks a language model: the same records as the random one, from any chat endpoint.

The model sees one to five seeds and the rules (``skills/synthesis/compose.md``); its answer is text, held to
the same form as everything else. What is malformed is counted and dropped; nothing of it runs here but on
fake tensors, in a disposable process of the filters.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

from cuda_agent.errors import TaskError
from cuda_agent.synthesis.compose.mix import TRANSFORMERS, Mix
from cuda_agent.synthesis.record import Size, TaskRecord
from cuda_agent.synthesis.scale import size_constants
from cuda_agent.synthesis.seed import Origin, Seed
from cuda_agent.synthesis.words import key_of

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_SMALL = re.compile(r"^(\w+)\s*=\s*\d+\s*#\s*small:\s*(\d+)\s*$", re.MULTILINE)
_FREE = re.compile(r"(?i)(batch|length|seq|height|width|depth|tokens)")
_MAX_CODE = 20_000


class Completer(Protocol):
    """Answers one chat."""

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of the model's answer.

        Raises:
            PolicyError: the endpoint is down or refuses.
        """
        ...


class Malformed(Exception):
    """An answer that is no task; the message says why, in few words."""


class LlmComposer:
    """Composes tasks by a language model.

    Args:
        seeds: mined operators to choose from.
        mix: shares by number of operators.
        complete: the model.
        name: of the model, kept in the records.
        seed: of the choice of operators.

    Attributes:
        dropped: answers that were malformed, by reason.
    """

    def __init__(
        self, seeds: Sequence[Seed], mix: Mix, complete: Completer, *, name: str, seed: int = 0
    ) -> None:
        self._pools = {origin: [s for s in seeds if s.origin is origin and s.forms] for origin in Origin}
        self._mix = mix
        self._complete = complete
        self._name = name
        self._seed = seed
        self.dropped: Counter[str] = Counter()

    def compose(self, *, start: int = 0, step: int = 1) -> Iterator[tuple[int, TaskRecord]]:
        """Tasks without end, each with its number (see :class:`RandomComposer`)."""
        number = start
        while True:
            record = self.one(number)
            if record is not None:
                yield number, record
            number += step

    def one(self, number: int) -> TaskRecord | None:
        """Ask for task ``number``; ``None`` where the answer is malformed.

        Raises:
            PolicyError: the endpoint is down or refuses.
        """
        rng = random.Random(f"{self._seed} {number}")
        kind = self._mix.draw(rng)
        chosen = self._choose(rng, kind)
        if not chosen:
            self.dropped["no seeds of that kind"] += 1
            return None
        answer = self._complete([{"role": "user", "content": prompt(chosen)}])
        try:
            return record_of(answer, chosen, kind, composer=f"llm:{self._name}")
        except Malformed as error:
            self.dropped[str(error)] += 1
            return None

    def _choose(self, rng: random.Random, kind: str) -> list[Seed]:
        if kind == TRANSFORMERS:
            pool, count = self._pools[Origin.TRANSFORMERS], 1
        else:
            pool, count = self._pools[Origin.TORCH], int(kind.rpartition("#")[2])
        return rng.sample(pool, min(count, len(pool)))


def prompt(seeds: Sequence[Seed]) -> str:
    """What the model is asked."""
    text = resources.files("cuda_agent.skills").joinpath("synthesis/compose.md").read_text(encoding="utf-8")
    parts = [f"`{seed.op}`:\n\n```python\n{seed.source.strip()}\n```" for seed in seeds]
    return text.replace("@@OPERATORS@@", "\n\n".join(parts))


def record_of(answer: str, seeds: Sequence[Seed], kind: str, *, composer: str) -> TaskRecord:
    """The task in a model's answer.

    Raises:
        Malformed: it holds none of the form asked for.
    """
    code = _code_in(answer)
    sizes = _sizes_in(code)
    ops = [seed.op for seed in seeds]
    written = {key_of(name) for name in _names_in(code)}
    if missing := [op for op in ops if key_of(op) not in written]:
        raise Malformed(f"leaves out {len(missing)} of its operators")
    return TaskRecord(
        code=code,
        ops=tuple(ops),
        data_source=kind,
        seeds=tuple(seed.id for seed in seeds),
        sizes=sizes,
        by_mode=any(seed.traits.by_mode for seed in seeds),
        composer=composer,
    )


def _code_in(answer: str) -> str:
    blocks = _BLOCK.findall(answer)
    if len(blocks) != 1:
        raise Malformed("no fenced block" if not blocks else "several fenced blocks")
    code: str = blocks[0].strip() + "\n"
    if len(code) > _MAX_CODE:
        raise Malformed("too long")
    record = TaskRecord(code, ("x",), "torch#1")
    try:
        record.task().check_names()
    except TaskError as error:
        raise Malformed(
            "does not parse" if "defines no" not in error.cause else "a name is missing"
        ) from None
    return code


def _sizes_in(code: str) -> dict[str, Size]:
    """Size constants with the small value that their comment names."""
    small = {name: int(value) for name, value in _SMALL.findall(code)}
    shipped = size_constants(code)
    if not small:
        raise Malformed("no size names its small value")
    if any(small[name] > shipped.get(name, 0) for name in small):
        raise Malformed("a small size is larger than its large one")
    return {
        name: Size(small[name], shipped[name], free=bool(_FREE.search(name)) and not _is_argument(name, code))
        for name in small
    }


def _is_argument(name: str, code: str) -> bool:
    """Whether the constructor takes a constant."""
    found = next(
        (n for n in ast.parse(code).body if isinstance(n, ast.FunctionDef) and n.name == "get_init_inputs"),
        None,
    )
    return found is not None and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(found))


def _names_in(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.ClassDef):
            yield node.name


def endpoint_completer(model: str, *, base_url: str | None, **options: Any) -> Completer:
    """A model behind a chat endpoint, by the client of the chat policy.

    Raises:
        UsageError: the ``openai`` package or the key is missing.
    """
    from cuda_agent.agent.policies.endpoint import Endpoint, RefusedError
    from cuda_agent.agent.policies.options import PolicyOptions
    from cuda_agent.agent.policies.wire import NonsenseError
    from cuda_agent.errors import PolicyError

    endpoint = Endpoint(base_url=base_url, options=PolicyOptions(**options))

    def read(data: Any) -> str:
        try:
            return str(data["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError):
            raise NonsenseError("no message in it") from None

    def complete(messages: Sequence[Mapping[str, str]]) -> str:
        request = {"model": model, "messages": [dict(message) for message in messages]}
        try:
            return str(endpoint.complete(request, read=read, deadline=None))
        except RefusedError as error:
            raise PolicyError(f"endpoint {endpoint.url} refuses: {error.message}") from None

    return complete
