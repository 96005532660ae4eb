"""Verification: one check at a time, and the plan of checks (docs/judging.md, "What is run").

A check draws inputs, lets the reference say what is expected, copies the inputs into memory the candidate
may touch, calls the candidate, and compares bytes the judge owns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from cuda_agent.config import JudgeConfig, Track
from cuda_agent.judge import exchange
from cuda_agent.judge.candidate import Candidate, Produced
from cuda_agent.judge.channel import plain_text
from cuda_agent.judge.compare import LeafReport, compare_leaf
from cuda_agent.judge.devices import Place
from cuda_agent.judge.exchange import Block
from cuda_agent.judge.reference import Drawn, Expected, Reference
from cuda_agent.result import Violation, ViolationKind

# Errors of this size, spread over the output, are what TF32, bfloat16 or float16 arithmetic leaves.
_LOW_PRECISION_RMS = (2.0**-15, 2.0**-7)
_SPREAD = 16.0
_INDEPENDENT = 0.25
_NUM_SAMPLED = 1 << 20
# A failing call of more bytes is not kept for ``explain``.
_KEPT_BYTES = 64 << 20
_MOST_WORDS = 200
# Earlier expectations that a wrong output is compared with; only the last one where they are large.
_NUM_EARLIER = 4


@dataclass(frozen=True)
class CheckReport:
    """Outcome of one check.

    Attributes:
        ok: passed.
        detail: why not, one line for each output; empty when passed.
        violation: the broken rule, if it is one.
        leaves: comparison of each output.
        note: remark on how it was compared.
    """

    ok: bool
    detail: str = ""
    violation: Violation | None = None
    leaves: tuple[LeafReport, ...] = ()
    note: str = ""


@dataclass
class Tally:
    """Largest errors over all checks of a verdict, and the notes."""

    max_abs: float | None = None
    max_rel: float | None = None
    scaled: dict[str, float] = field(default_factory=dict)
    budget: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, report: CheckReport) -> None:
        """Take one check's errors in; of the scaled error, the one nearest its budget is kept."""
        for leaf in report.leaves:
            self.max_abs = _largest(self.max_abs, leaf.max_abs)
            self.max_rel = _largest(self.max_rel, leaf.max_rel)
            if leaf.scaled is None or leaf.budget is None:
                continue
            pairs = zip(("max", "rms"), leaf.scaled, (leaf.budget.max, leaf.budget.rms), strict=True)
            for key, error, limit in pairs:
                known = self.scaled.get(key)
                if known is None or error / limit >= known / self.budget[key]:
                    self.scaled[key], self.budget[key] = error, limit
        self.note(report.note)

    def note(self, text: str) -> None:
        """Keep a note once."""
        if text and text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class Subject:
    """What a verification works with: both processes and the contract."""

    reference: Reference
    candidate: Candidate
    config: JudgeConfig
    place: Place


class Checker:
    """Runs checks on one candidate and remembers what it needs between them."""

    def __init__(self, subject: Subject, blocks: dict[str, Block] | None = None) -> None:
        """Check ``subject``, with input memory of its own or in ``blocks`` (which it then owns, too)."""
        self._subject = subject
        self._blocks = {} if blocks is None else blocks
        self._earlier: list[Expected] = []
        self.last_failure: dict[str, Any] | None = None

    def check(
        self,
        name: str,
        drawn: Drawn,
        *,
        slot: str = "in0",
        must_be_finite: bool = False,
        hold: str | None = None,
    ) -> CheckReport | None:
        """Call the candidate once and compare.

        Args:
            name: of the check, for reports.
            drawn: inputs, in the judge's and the reference's memory.
            slot: input memory to use; reusing one keeps its address.
            must_be_finite: give no report (``None``) where the reference is not finite.
            hold: keep the candidate's output objects under this name.
        """
        subject = self._subject
        expected = subject.reference.run(drawn, float64=subject.config.track is Track.MATCHED)
        if must_be_finite and not expected.finite:
            expected.close()
            return None
        try:
            block = self._input_block(slot, drawn)
            produced = subject.candidate.run(slot, block, drawn.plan, room=expected.plan, hold=hold)
            report = self._judge_call(name, drawn, block, expected, produced)
        except BaseException:  # a fault of the candidate above all: its memory must not outlive it
            expected.close()
            raise
        if not report.ok:
            self.last_failure = _failure(name, drawn, expected, produced)
        self._remember(expected)
        return report

    def _remember(self, expected: Expected) -> None:
        self._earlier.append(expected)
        while len(self._earlier) > (_NUM_EARLIER if expected.plan["nbytes"] <= _KEPT_BYTES else 1):
            self._earlier.pop(0).close()

    def check_held(self, name: str, hold: str, expected: Expected) -> CheckReport:
        """An output held since an earlier call must still be what it was."""
        outputs = self._subject.candidate.fetch(hold=hold)
        leaves = compare_outputs(outputs, expected, self._subject.config.track)
        if all(leaf.ok for leaf in leaves):
            return CheckReport(True, leaves=leaves)
        detail = f"{name}: an earlier call's output changed when forward was called again"
        return CheckReport(False, detail, Violation(ViolationKind.MEMORY_REUSE, detail), leaves)

    def take_last(self) -> Expected:
        """Hand over the last check's expected outputs (the caller closes them)."""
        if not self._earlier:
            raise LookupError("no check has run")
        return self._earlier.pop()

    def _input_block(self, slot: str, drawn: Drawn) -> Block:
        block = self._blocks.get(slot)
        if block is None or block.nbytes < drawn.plan["nbytes"]:
            if block is not None:
                block.close()
            block = Block(drawn.plan["nbytes"], device=self._subject.place.block_device)
            self._blocks[slot] = block
        copy_bytes(drawn, block)
        self._subject.place.synchronize()
        return block

    def _judge_call(
        self, name: str, drawn: Drawn, block: Block, expected: Expected, produced: Produced
    ) -> CheckReport:
        if produced.operators:
            detail = f"{name}: forward used PyTorch operators: {', '.join(produced.operators)}"
            return CheckReport(False, detail, Violation(ViolationKind.TORCH_COMPUTE, detail))
        if produced.tampered:
            detail = f"{name}: the dispatcher guard was taken off its stack"
            return CheckReport(False, detail, Violation(ViolationKind.TAMPERING, detail))
        if problem := self._form_problem(expected, produced):
            return CheckReport(False, f"{name}: {problem}")
        track = self._subject.config.track
        leaves = compare_outputs(produced.outputs, expected, track)
        if not all(leaf.ok for leaf in leaves):
            return self._wrong(name, expected, produced, leaves)
        if violation := self._side_effects(name, drawn, block, expected, produced):
            return CheckReport(False, violation.detail, violation, leaves)
        return CheckReport(True, leaves=leaves, note=expected.why64)

    def _form_problem(self, expected: Expected, produced: Produced) -> str:
        if not same_form(produced.plan["root"], expected.plan["root"]):
            return (
                f"forward returned {plain_text(words(produced.plan['root']), _MOST_WORDS)}, "
                f"the reference returns {words(expected.plan['root'])}"
            )
        kinds = set(produced.devices) - {self._subject.place.kind}
        if kinds:
            return f"an output lies on {', '.join(sorted(kinds))}, not {self._subject.place.kind}"
        if produced.outputs is None:
            return "the outputs are larger in memory than the reference's"
        return ""

    def _wrong(
        self, name: str, expected: Expected, produced: Produced, leaves: tuple[LeafReport, ...]
    ) -> CheckReport:
        detail = f"{name}: " + "; ".join(leaf.detail for leaf in leaves if not leaf.ok)
        violation = None
        if any(self._is_stale(produced, expected, earlier) for earlier in self._earlier):
            violation = Violation(ViolationKind.STALE_OUTPUT, f"{name}: an earlier call's output came back")
        elif _looks_low_precision(produced, expected, leaves):
            violation = Violation(
                ViolationKind.PRECISION, f"{name}: errors of reduced-precision arithmetic; {detail}"
            )
        return CheckReport(False, detail, violation, leaves)

    def _is_stale(self, produced: Produced, expected: Expected, earlier: Expected) -> bool:
        if not same_form(earlier.plan["root"], expected.plan["root"]):
            return False
        same_expectation = compare_outputs(earlier.outputs, expected, Track.PAPER)
        if all(leaf.ok for leaf in same_expectation):
            return False
        stale = compare_outputs(produced.outputs, earlier, Track.PAPER)
        return all(leaf.ok for leaf in stale)

    def _side_effects(
        self, name: str, drawn: Drawn, block: Block, expected: Expected, produced: Produced
    ) -> Violation | None:
        if not _same_bytes(produced.outputs, produced.later):
            return Violation(ViolationKind.LATE_WORK, f"{name}: the output changed after forward returned")
        if produced.shared and not expected.shared:
            return Violation(ViolationKind.MEMORY_REUSE, f"{name}: an output lies in an input's memory")
        track = self._subject.config.track
        before = list(exchange.leaves(exchange.read(drawn.plan, drawn.block, copy=False)))
        after = list(exchange.leaves(exchange.read(drawn.plan, block, copy=False)))
        for index, (was, now) in enumerate(zip(before, after, strict=True)):
            if index in expected.changed:
                report = compare_leaf(
                    now, expected.changed[index], None, track=track, name=f"input {index} after the call"
                )
                if not report.ok:
                    return Violation(ViolationKind.INPUT_MUTATION, f"{name}: {report.detail}")
            elif not torch.equal(_raw(was), _raw(now)):
                return Violation(ViolationKind.INPUT_MUTATION, f"{name}: input {index} was changed")
        return None

    def close(self) -> None:
        """Release the input memory and the last expectation; may run twice."""
        for block in self._blocks.values():
            block.close()
        self._blocks.clear()
        while self._earlier:
            self._earlier.pop().close()


def first_failure(reports: Iterator[CheckReport | None], tally: Tally) -> CheckReport | None:
    """Run checks in order until one fails; its report, or ``None`` when all pass."""
    for report in reports:
        if report is None:
            continue
        tally.add(report)
        if not report.ok:
            return report
    return None


def public_checks(
    checker: Checker, reference: Reference, num_draws: int, say: Callable[[str], None]
) -> Iterator[CheckReport | None]:
    """The part an agent may see: draws by the task's own ``get_inputs``, every case at least once."""
    total = max(num_draws, len(reference.weights))
    for index in range(total):
        drawn = reference.draw(case=index % len(reference.weights))
        try:
            report = checker.check(f"check {index + 1}/{total}", drawn, slot=f"in{index % 2}")
        finally:
            drawn.close()
        if report is not None:
            say(f"[{'PASS' if report.ok else 'FAIL'}] check {index + 1}/{total}" + _reason(report))
        yield report


def _reason(report: CheckReport) -> str:
    return "" if report.ok else f": {report.detail.split(': ', 1)[-1]}"


def compare_outputs(outputs: Any, expected: Expected, track: Track) -> tuple[LeafReport, ...]:
    """Each output leaf against the reference; one failed report when there is nothing to compare."""
    if outputs is None:
        return (LeafReport(False, None, None, None, None, "no output"),)
    truth = list(exchange.leaves(expected.outputs))
    truth64: list[torch.Tensor | None] = (
        [None] * len(truth) if expected.outputs64 is None else list(exchange.leaves(expected.outputs64))
    )
    actual = list(exchange.leaves(outputs))
    if len(actual) != len(truth):
        return (LeafReport(False, None, None, None, None, f"{len(actual)} outputs, not {len(truth)}"),)
    names = ["the output"] if len(truth) == 1 else [f"output {index}" for index in range(len(truth))]
    return tuple(
        compare_leaf(got, want, want64, track=track, name=name)
        for name, got, want, want64 in zip(names, actual, truth, truth64, strict=True)
    )


def copy_bytes(drawn: Drawn, block: Block) -> None:
    """Copy drawn inputs into other shared memory of the same kind."""
    size = drawn.plan["nbytes"]
    block.bytes[:size].copy_(drawn.block.bytes[:size])


def same_form(a: Any, b: Any) -> bool:
    """Whether two plans' roots are the same container of the same number of tensors."""
    for kind in ("list", "tuple"):
        if kind in a or kind in b:
            return kind in a and kind in b and _all_same(a[kind], b[kind])
    if "dict" in a or "dict" in b:
        return (
            "dict" in a
            and "dict" in b
            and list(a["dict"]) == list(b["dict"])
            and _all_same(list(a["dict"].values()), list(b["dict"].values()))
        )
    if "tensor" in a or "tensor" in b:
        return "tensor" in a and "tensor" in b
    return bool(a == b)


def _all_same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(same_form(x, y) for x, y in zip(a, b, strict=True))


def words(root: Any) -> str:
    """A plan's root in words: ``tuple(float32[8,64], float32[8])``."""
    for kind in ("list", "tuple"):
        if kind in root:
            return f"{kind}({', '.join(words(item) for item in root[kind])})"
    if "dict" in root:
        return "dict(" + ", ".join(f"{k}={words(v)}" for k, v in root["dict"].items()) + ")"
    if "tensor" in root:
        return f"{root['tensor']}[{','.join(map(str, root['shape']))}]"
    return str(root.get("value", root))


def _largest(known: float | None, value: float | None) -> float | None:
    if value is None:
        return known
    return value if known is None or value > known else known


def _looks_low_precision(produced: Produced, expected: Expected, leaves: tuple[LeafReport, ...]) -> bool:
    """All wrong outputs are float32 and err as TF32, bfloat16 or float16 arithmetic does.

    Small, spread over the whole output, and independent of its values: rounding, not a wrong formula.
    """
    truth = expected.outputs if expected.outputs64 is None else expected.outputs64
    triples = zip(leaves, exchange.leaves(produced.outputs), exchange.leaves(truth), strict=True)
    return all(leaf.ok or _errs_like_rounding(leaf, got, want) for leaf, got, want in triples)


def _errs_like_rounding(leaf: LeafReport, got: torch.Tensor, want: torch.Tensor) -> bool:
    if got.dtype is not torch.float32 or leaf.scaled is None or not math.isfinite(leaf.scaled[0]):
        return False
    largest, rms = leaf.scaled
    if not _LOW_PRECISION_RMS[0] <= rms <= _LOW_PRECISION_RMS[1] or largest > _SPREAD * rms:
        return False
    step = max(1, got.numel() // _NUM_SAMPLED)
    truth = want.reshape(-1)[::step].double()
    error = got.reshape(-1)[::step].double() - truth
    size = float(error.square().mean().sqrt())
    biased = abs(float(error.mean())) > _INDEPENDENT * size
    centred = truth - truth.mean()
    scale = float(centred.square().mean().sqrt()) * size
    return not biased and abs(float((error * centred).mean())) <= _INDEPENDENT * scale


def _same_bytes(a: Any, b: Any) -> bool:
    return all(
        torch.equal(_raw(x), _raw(y)) for x, y in zip(exchange.leaves(a), exchange.leaves(b), strict=True)
    )


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a strided view as bytes (so that NaN equals NaN)."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _failure(name: str, drawn: Drawn, expected: Expected, produced: Produced) -> dict[str, Any] | None:
    """What ``cuda-agent explain`` shows of a failed check: CPU copies; ``None`` when they are large."""
    if drawn.plan["nbytes"] + 2 * expected.plan["nbytes"] > _KEPT_BYTES:
        return None
    outputs = [] if produced.outputs is None else list(exchange.leaves(produced.outputs))
    if sum(leaf.numel() * leaf.itemsize for leaf in outputs) > _KEPT_BYTES:
        return None  # few bytes can be seen as a tensor of any size
    return {
        "check": name,
        "inputs": exchange.read(drawn.plan, drawn.block, device="cpu", copy=True),
        "expected": [leaf.cpu().clone() for leaf in exchange.leaves(expected.outputs)],
        "actual": [leaf.cpu().clone() for leaf in outputs],
    }
