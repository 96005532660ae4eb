"""The playbook's episode: what it does, in order, and what it says while doing it.

A generator yields one step (words and tool calls) and is sent the answers. It touches the workspace only
through tools.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.agent.playbook.backends import CpuKernels, CudaKernels, KernelBackend
from cuda_agent.agent.playbook.candidate import Candidate, make_candidate, variants
from cuda_agent.agent.playbook.graph import Captured, parse
from cuda_agent.agent.playbook.ir import Unsupported
from cuda_agent.agent.playbook.plan import GemmStep
from cuda_agent.agent.policy import EpisodeContext

GRAPH_FILE = ".playbook/graph.jsonl"
CAPTURE = f"python3 -m cuda_agent.agent.playbook.capture --out {GRAPH_FILE}"
COMPILE = "bash utils/compile.sh"
VERIFY = "python3 -m utils.verification"
PROFILE = "python3 -m utils.profiling"
MAX_PROFILES = 8
"""Profiles spent on one episode, the first one included."""
ROUND = 3
"""Fewest alternatives of a round; one for each kernel where there are more kernels."""
WORTHWHILE = 0.02
"""Tuning ends after a round that saves no more than this share."""
MARGIN = {"cpu": 0.03, "cuda": 0.01}
"""A change of configuration is kept when it saves more than this share: below it is noise."""
_TIME = re.compile(r"CUDA Extension: ([0-9.]+)us")
_BASELINES = re.compile(r"Torch Baseline: (\S+), Torch Compile: (\S+), CUDA")
_PAGES = re.compile(r"^pages:((?: \d+-\d+)+)$", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """One tool call of a step."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Step:
    """Words and tool calls; no calls ends the episode."""

    text: str
    calls: tuple[Call, ...] = ()


Script = Generator[Step, list[str], None]
Sub = Generator[Step, list[str], Any]


def bash(command: str) -> Call:
    """A shell command."""
    return Call("Bash", {"command": command})


def write(path: str, content: str) -> Call:
    """A whole file."""
    return Call("Write", {"file_path": path, "content": content})


def episode(context: EpisodeContext) -> Script:
    """The whole episode."""
    backend = kernel_backend(context)
    yield Step(
        "I start with the reference and the starter file: what the module computes decides what can be "
        "fused, and ModelNew must keep its constructor and state_dict.",
        (Call("Read", {"file_path": "model.py"}), Call("Read", {"file_path": "model_new.py"})),
    )
    try:
        captured = yield from _capture()
        candidate = make_candidate(captured, context.task.code, backend)
    except Unsupported as refusal:
        yield Step(f"I stop here: {refusal.cause}. The playbook does not cover this module, and model_new.py "
                   "stays the starter file.")  # fmt: skip
        return
    built = yield from _build(candidate)
    if built:
        yield from _improve(candidate, context.backend)


def kernel_backend(context: EpisodeContext) -> KernelBackend:
    """The emitter for an episode; TF32 only where the contract allows it."""
    if context.backend == "cpu":
        return CpuKernels()
    return CudaKernels(tf32=context.track == "paper" or context.precision == "tf32")


def _capture() -> Sub:
    """Export the graph and read it, page by page.

    Raises:
        Unsupported: it cannot be exported.
    """
    [answer] = yield Step(
        "I export the module's graph with fake tensors: nothing of the inputs' size is allocated, and "
        "parameters stay symbols, so no weight can end up in a kernel.",
        (bash(CAPTURE),),
    )
    refused = re.search(r"^refused: (.*)$", answer, re.MULTILINE)
    if refused:
        raise Unsupported(refused[1])
    pages = _PAGES.search(answer)
    if pages is None:
        last = answer.strip().splitlines()[-1:] or ["no output"]
        raise Unsupported(f"the graph could not be captured: {last[0][:300]}")
    lines: list[str] = []
    for page in pages[1].split():
        first, last_line = page.split("-")
        [text] = yield Step(
            f"I read lines {first} to {last_line} of the graph: inputs, then one operator a line.",
            (bash(f"sed -n '{first},{last_line}p' {GRAPH_FILE}"),),
        )
        lines += [line for line in text.splitlines() if line.startswith("{")]
    return _parsed(lines)


def _parsed(lines: Sequence[str]) -> Captured:
    try:
        return parse(lines)
    except (ValueError, KeyError):
        raise Unsupported("the captured graph is too large to be read through the tools") from None


def _build(candidate: Candidate) -> Sub:
    """Write, compile and verify; whether the candidate is right."""
    yield Step(
        plan_text(candidate),
        (
            write(candidate.kernel_file(), candidate.kernel_source()),
            write(candidate.binding_file(), candidate.binding_source()),
            write("model_new.py", candidate.model_source()),
        ),
    )
    [answer] = yield Step(
        "I compile. The binding is the same for every module, so it is cached.", (bash(COMPILE),)
    )
    if _failed(answer):
        yield Step(f"The generated kernels do not compile, and I have no other form of them. The compiler "
                   f"says: {_first_line(answer)}")  # fmt: skip
        return False
    [answer] = yield Step(
        "It builds. Before any timing I verify: a wrong kernel is worth nothing.", (bash(VERIFY),)
    )
    if _failed(answer):
        yield Step(
            f"Verification fails and the playbook has no second plan for this graph: {_first_line(answer)}"
        )
        return False
    return True


def _failed(answer: str) -> bool:
    return re.search(r"^\[exit status [1-9]|^\[FAIL\]|^\[ERROR\]", answer, re.MULTILINE) is not None


def _first_line(answer: str) -> str:
    lines = [x for x in answer.splitlines() if x.strip() and not x.startswith(("[PASS]", "[exit"))]
    telling = [x for x in lines if "error" in x or "[FAIL]" in x] or lines or ["no output"]
    return telling[0][:400]


def plan_text(candidate: Candidate) -> str:
    """The plan in words: each launch and what it saves."""
    case = candidate.cases[0]
    parts = []
    for number, (step, emitted) in enumerate(zip(case.plan.steps, case.emitted, strict=True), 1):
        if isinstance(step, GemmStep):
            batch = f" in a batch of {step.batch}" if step.batch > 1 else ""
            sizes = f"[{step.m} x {step.k}] x [{step.k} x {step.n}]{batch}"
            parts.append(f"{number}. {emitted.name}: product {sizes}, by the vendor library.")
        else:
            reads, writes = len(step.loads), len(step.stores)
            parts.append(f"{number}. {emitted.name}: {emitted.knob.what}, {len(step.nodes)} expressions, "
                         f"reads {reads} tensor(s) and writes {writes}.")  # fmt: skip
    many = f" The task has {len(candidate.cases)} input shapes: each gets its own launches." if len(
        candidate.cases) > 1 else ""  # fmt: skip
    count = len(case.case.ops)
    return (
        f"Plan: {count} operators become {len(parts)} launch(es). What stays inside a kernel never goes to "
        f"memory; only what another launch reads is written.{many}\n" + "\n".join(parts)
    )


# Tuning


@dataclass
class _Tuning:
    """What has been measured.

    Attributes:
        margin: share of the time that a change must save to be kept.
        measured: (microseconds, configuration) of every state kept, in order; each is faster than the last.
        profiles: spent so far.
    """

    candidate: Candidate
    margin: float
    measured: list[tuple[float, str]] = field(default_factory=list)
    profiles: int = 0

    @property
    def best(self) -> float:
        """Microseconds of the configuration in place; infinity while nothing could be timed."""
        return self.measured[-1][0] if self.measured else float("inf")

    def keep(self, time: float) -> None:
        """The configuration in place takes this long."""
        self.measured.append((time, self.candidate.config_text()))


def _improve(candidate: Candidate, backend: str) -> Sub:
    """Profile, try other configurations, end with the fastest that verifies."""
    tuning = _Tuning(candidate, MARGIN[backend])
    verified = candidate.config_text()
    answer = yield from _first_profile(tuning)
    yield from _rounds(tuning)
    if not tuning.measured:
        yield Step(f"It is verified but could not be timed, so I leave it as it is: {_first_line(answer)}")
        return
    yield from _settle(tuning, verified)


def _first_profile(tuning: _Tuning) -> Sub:
    """Time the first configuration; once more when that fails, which need not be the kernel's fault."""
    texts = ("It is right. I time it against eager and torch.compile.", "No time came back; I try once more.")
    answer = ""
    for text in texts:
        tuning.profiles += 1
        [answer] = yield Step(text, (bash(PROFILE),))
        time = _time(answer)
        if time is not None:
            tuning.keep(time)
            break
    return answer


def _rounds(tuning: _Tuning) -> Sub:
    """Try alternatives until the profiles are spent or a whole round brings nothing worth a profile."""
    before, in_round = tuning.best, 0
    knobs = sum(len(case.knobs) for case in tuning.candidate.cases)
    for case, step, value in variants(tuning.candidate):
        if tuning.profiles >= MAX_PROFILES:
            return
        yield from _try(tuning, case, step, value)
        in_round += 1
        if in_round >= max(ROUND, knobs):
            if tuning.best > before * (1 - WORTHWHILE):
                return
            before, in_round = tuning.best, 0


def _try(tuning: _Tuning, case: int, step: int, value: int) -> Sub:
    """Time one alternative; keep it when it is faster beyond the noise, else take it back."""
    candidate = tuning.candidate
    old, knob = candidate.config[case][step], candidate.cases[case].knobs[step]
    where = f"CONFIG[{case}][{step}]" if len(candidate.cases) > 1 else f"kernel {step}"
    edit = _edit(candidate, case, step, value)
    tuning.profiles += 1
    _, answer = yield Step(
        f"Tuning {where} ({knob.what}): {old} -> {value} ({knob.legend}).", (edit, bash(PROFILE))
    )
    time = _time(answer)
    if time is not None and time < tuning.best * (1 - tuning.margin):
        tuning.keep(time)
        return
    yield Step(_worse(time, tuning.best), (_edit(candidate, case, step, old),))


def _settle(tuning: _Tuning, verified: str) -> Sub:
    """Verify the fastest configuration, then the next one, down to the one verified before tuning."""
    now, started, refusal = tuning.candidate.config_text(), tuning.measured[0][0], ""
    for time, config in reversed(tuning.measured):
        calls = [] if config == now else [_replace(now, config)]
        now = config
        if config == verified:
            if calls:
                yield Step(f"{refusal}I go back to the configuration verified before tuning.", tuple(calls))
            yield Step(f"Done: {time:.3f} us a call, verified. The final state is the best one measured.")
            return
        *_, answer = yield Step(
            f"{refusal}The best configuration left takes {time:.3f} us where the first took {started:.3f} "
            "us. It differs from the one verified, so I compile and verify it.",
            (*calls, bash(f"{COMPILE} && {VERIFY}")),
        )
        if not _failed(answer):
            yield Step(f"Done: {time:.3f} us a call, verified. The final state is the best one measured.")
            return
        refusal = f"That one does not verify: {_first_line(answer)}. "
    yield Step(f"{refusal}I go back to the configuration verified before tuning.", (_replace(now, verified),))
    yield Step("Done: verified, not timed.")


def _worse(time: float | None, best: float) -> str:
    if time is None:
        return "That configuration could not be timed; back to the one before."
    return f"{time:.3f} us is no better than {best:.3f} us beyond the noise; back to the one before."


def _edit(candidate: Candidate, case: int, step: int, value: int) -> Call:
    """Change one number of CONFIG, in the candidate and in the file."""
    old = candidate.config_text()
    candidate.config[case][step] = value
    return _replace(old, candidate.config_text())


def _replace(old: str, new: str) -> Call:
    return Call("Edit", {"file_path": "model_new.py", "old_string": old, "new_string": new})


def _time(answer: str) -> float | None:
    found = _TIME.search(answer)
    return float(found[1]) if found else None
