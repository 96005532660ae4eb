"""docs/cheats.md, made from the cheats themselves: ``python tests/adversarial/table.py > docs/cheats.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1] / "judge")]

from cheat import Cheat
from cheats import CHEATS
from cheats_cuda import CUDA_CHEATS
from harmless import HARMLESS

# Entries of the catalogue that no candidate of these lists tries, with where they are met, or why not.
ELSEWHERE = {
    (7, 8): "no other kernel library or language is built: only C++ and CUDA, against allowed libraries",
    (15,): "`eager operators in a graph` (GPU); a CUDA-graph baseline is reported by `cuda-agent baseline`",
    (20, 21, 23, 24, 26, 30, 32, 43): (
        "task admission (`cuda-agent admit`, docs/degenerate.md), tests/judge/test_admission.py"
    ),
    (28,): "a lucky surrogate is PyTorch compute or wrong; inputs are drawn from secret seeds",
    (31, 38): "legal: exact algebra, and kernels made for the task's shapes",
    (
        35,
        37,
        39,
    ): "candidates are verified at the shapes they are timed at; other shapes fall back at run time",
    (45,): "the error budget (tests/judge/test_calibration.py)",
    (49,): "arguments that the reference changes are compared (tests/honest, in place as the reference)",
    (50,): "tolerances come from each task's own error, none are keyed by name",
    (
        52,
    ): "a repeated call is compared; no race checker runs in a verdict (`explain` offers compute-sanitizer)",
    (56,): "expected outputs lie in another process's memory",
    (67,): "`graph that replays old inputs` (GPU)",
    (71, 99): "rotated input sets, L2 flushed by writes of twice its size; a persisting window is not reset",
    (73, 79): "`work on a stream left open`, `host thread launches late` (GPU)",
    (80, 81): "credited is the device span, bounded by wall time; host compute shows in it",
    (82,): "one device is visible",
    (92,): "repeat counts are fixed by time measured on both sides, warm-up is not credited",
    (97, 98): "blocks of candidate and eager alternate in random order",
    (100,): "the floor (tests/judge/test_floor.py)",
    (101,): "the pick is judged again in a fresh process",
    (102,): "tests/judge/test_judge_cuda.py and tests/judge/test_profile_bound.py hold known durations",
    (103,): "time of `prepare()` is reported; it may not see inputs",
}
_HEAD = """# Cheats, and what refuses them

Numbers are those of the catalogue of 118 exploits that the judge is held against. Every row is a candidate
that the tests build, run and judge (`tests/adversarial/`); the table is made from them
(`python tests/adversarial/table.py > docs/cheats.md`), and a test holds it to them. What the rows marked GPU
did on one is in `docs/results/`.
"""


def _row(cheat: Cheat, where: str) -> str:
    numbers = ", ".join(str(number) for number in cheat.hacks)
    named = ", ".join(sorted(str(kind) for kind in cheat.kinds)) or "wrong, or no answer"
    return f"| {cheat.name} | {numbers} | {where} | {named} | {cheat.defence} |"


def page() -> str:
    """The whole page."""
    lines = [
        _HEAD,
        "## Refused",
        "",
        "| cheat | numbers | where | named | defence |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [_row(cheat, "CPU") for cheat in CHEATS]
    lines += [_row(cheat, "GPU") for cheat in CUDA_CHEATS]
    lines += [
        "",
        "## Accepted, since they gain nothing",
        "",
        "| attempt | numbers | why |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {c.name} | {', '.join(map(str, c.hacks))} | {c.defence} |" for c in HARMLESS]
    lines += [
        "",
        "## Met elsewhere, legal, or impossible here",
        "",
        "| numbers | where, or why |",
        "| --- | --- |",
    ]
    lines += [f"| {', '.join(map(str, numbers))} | {why} |" for numbers, why in ELSEWHERE.items()]
    return "\n".join(lines) + "\n"


def covered() -> set[int]:
    """Numbers that the page says something of."""
    tried: Iterable[Cheat] = (*CHEATS, *CUDA_CHEATS, *HARMLESS)
    return {n for cheat in tried for n in cheat.hacks} | {n for numbers in ELSEWHERE for n in numbers}


if __name__ == "__main__":
    sys.stdout.write(page())
