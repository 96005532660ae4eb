"""A finished run in words: the lines of the final table, and ``summary.md``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.result import Result, Times
from cuda_agent.runs.run_folder import RunFolder
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending

COLUMNS = ("task", "eager", "torch.compile", "candidate", "vs eager", "vs compile", "verdict", "reward")


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        folder: where everything lies.
        task: the reference.
        ending, detail: of the episode.
        result: final verdict; ``None`` when it was not reached (interrupted again).
        num_turns: turns of the episode.
        num_versions, num_verified: versions judged by the public scripts, and those that passed.
        words: the policy's last words.
    """

    folder: RunFolder
    task: Task
    ending: Ending
    detail: str
    result: Result | None
    num_turns: int
    num_versions: int
    num_verified: int
    words: str = ""


def format_us(time_us: float) -> str:
    """A time with three digits and a fitting unit."""
    for limit, scale, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if time_us < 0.9995 * limit:  # what rounds to the limit is said in the next unit
            return f"{time_us / scale:.3g} {unit}"
    return f"{time_us / 1e6:.3g} s"


def format_times(times: Times | None) -> str:
    """Median, with the 10th and 90th percentile behind it."""
    if times is None:
        return "-"
    return f"{format_us(times.median)} [{format_us(times.p10)}, {format_us(times.p90)}]"


def verdict(result: Result | None) -> str:
    """The verdict in a few words."""
    if result is None:
        return "not judged"
    if result.infrastructure is not None:
        return "no verdict (our side failed)"
    if result.correct is None:
        return "not judged"
    if result.correct:
        return "verified"
    if result.candidate_hash is None:
        return "no candidate"
    if result.violations:
        return "refused: " + ", ".join(sorted({str(v.kind) for v in result.violations}))
    return f"wrong at {result.stage}" + (f" ({result.fault})" if result.fault else "")


def table_row(name: str, result: Result | None) -> tuple[str, ...]:
    """One row of the final table; the order is that of :data:`COLUMNS`."""
    if result is None:
        return (name, "-", "-", "-", "-", "-", verdict(None), "-")
    return (
        name,
        format_times(result.eager_us),
        format_times(result.compile_us),
        format_times(result.candidate_us),
        _speedup(result, "eager"),
        _speedup(result, "compile"),
        verdict(result),
        "-" if result.reward is None else str(result.reward),
    )


def reasons(result: Result) -> list[str]:
    """Why a candidate is not verified: broken rules, fault, detail."""
    lines = [f"{v.kind}: {v.detail}" for v in result.violations]
    if result.fault is not None:
        lines.append(f"its process ended: {result.fault}")
    if result.infrastructure is not None:
        lines.append(f"our side failed: {result.infrastructure}")
    said = " ".join(lines)
    return [*lines, *(line for line in result.detail.splitlines() if line not in said)]


def summary_text(outcome: Outcome) -> str:
    """``summary.md``."""
    result = outcome.result
    parts = [
        f"# {outcome.task.name}: {verdict(result)}",
        _markdown_table([table_row(outcome.task.name, result)]),
        "Times are medians for one call, with the 10th and 90th percentile in brackets.",
        f"- Episode: {outcome.num_turns} turns, ended: {outcome.ending}"
        + (f" ({outcome.detail})" if outcome.detail else "")
        + f"\n- Versions judged on the way: {outcome.num_versions}, verified: {outcome.num_verified}",
    ]
    if result is not None:
        parts += _result_parts(result)
    if outcome.words:
        parts.append("## The policy's last words\n\n" + outcome.words.strip())
    parts.append(_files_part(outcome))
    return "\n\n".join(parts) + "\n"


def _result_parts(result: Result) -> list[str]:
    facts = [
        f"- Contract: track {result.track}, precision {result.precision}, on {result.device or 'unknown'}"
    ]
    if result.versions:
        facts.append("- Versions: " + ", ".join(f"{k} {v}" for k, v in sorted(result.versions.items())))
    if result.inputs:
        facts.append("- Verified inputs: " + "; ".join("(" + ", ".join(case) + ")" for case in result.inputs))
    if result.scaled_error and result.error_budget:
        error, budget = result.scaled_error, result.error_budget
        facts.append(
            "- Scaled error, share of budget: "
            + ", ".join(f"{k} {error[k]:.3g} of {budget[k]:.3g}" for k in error if k in budget)
        )
    for name in ("eager", "compile"):
        if result.confidence and name in result.confidence:
            low, high = result.confidence[name]
            facts.append(f"- Speed-up over {name}, 95 % interval: {low:.3f} to {high:.3f}")
    if result.correct and _slower(result):
        facts.append("- **Not faster than eager here: verified, but nothing is gained by loading it.**")
    parts = ["\n".join(facts)]
    if why := reasons(result):
        parts.append("## Why\n\n" + "\n".join(f"    {line}" for line in why))
    if result.notes:
        parts.append("## Notes\n\n" + "\n".join(f"- {note}" for note in result.notes))
    return parts


def _slower(result: Result) -> bool:
    """Whether the candidate takes at least as long as eager, by the medians."""
    if result.candidate_us is None or result.eager_us is None:
        return False
    return result.candidate_us.median >= result.eager_us.median


def _files_part(outcome: Outcome) -> str:
    folder = outcome.folder
    files = {
        folder.candidate: "`candidate/`: the kernels and `model_new.py`",
        folder.result: "`result.json`: the verdict",
        folder.trajectory: "`trajectory.jsonl`: every turn",
        folder.snapshots: "`snapshots/`: every version judged on the way",
    }
    lines = ["## Files", "", *(f"- {about}" for path, about in files.items() if path.exists())]
    if outcome.result is not None and outcome.result.correct:
        lines += ["", "Use it:", "", "```python", "import cuda_agent", ""]
        lines += [f"model = cuda_agent.load({str(folder.root)!r})", "```"]
    return "\n".join(lines)


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _speedup(result: Result, baseline: str) -> str:
    value = result.speedup(baseline)
    return "-" if value is None else f"{value:.2f}x"
