"""All stages in one: compose and filter until enough tasks are left after deduplication, then export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.synthesis.compose.mix import BALANCED, Mix
from cuda_agent.synthesis.compose.random_composer import RandomComposer
from cuda_agent.synthesis.dedupe.contamination import Reference
from cuda_agent.synthesis.dedupe.selection import Caps
from cuda_agent.synthesis.filters.runner import Outcome
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.stages.compose_stage import composed
from cuda_agent.synthesis.stages.dedupe_stage import Dedupe, run_dedupe
from cuda_agent.synthesis.stages.export_stage import run_export
from cuda_agent.synthesis.stages.filter_stage import Pool, Tally, run_filters
from cuda_agent.synthesis.stages.folder import Shard, SynthFolder, numbers_in
from cuda_agent.synthesis.target import CPU, H200, Compile, Target

_MAX_ROUNDS = 20
_SPARE = 1.15


@dataclass(frozen=True)
class Preset:
    """How a set is made.

    Attributes:
        name: of the preset.
        target: device, window, limits.
        mix: shares by number of operators.
        count: tasks wanted.
        caps: shares to hold.
        compile: how tasks are compiled.
    """

    name: str
    target: Target
    mix: Mix
    count: int
    caps: Caps
    compile: Compile


DEMO = Preset("demo", CPU, BALANCED, 30, Caps(headroom_share=0.0), Compile.CAPTURE)
"""Thirty tasks on a CPU within minutes. torch.compile captures and decomposes; no compile time is taken."""
FULL = Preset("full", H200, BALANCED, 6000, Caps(), Compile.INDUCTOR)
"""The set as shipped, for one H200."""
PRESETS = {preset.name: preset for preset in (DEMO, FULL)}


def run_all(
    seeds: Sequence[Seed],
    folder: SynthFolder,
    pool: Pool,
    *,
    preset: Preset,
    shard: Shard = Shard(),  # noqa: B008  frozen
    references: Sequence[Reference] = (),
    seed: int = 0,
    out: Path | None = None,
    on_outcome: Callable[[Tally, int, Outcome], None] = lambda *_: None,
) -> Dedupe:
    """Make a set: rounds of composing and filtering until ``preset.count`` tasks are left, then the files.

    Everything made is kept in the folder; run again after a kill, it goes on.

    Args:
        seeds: mined operators.
        folder: of the run.
        pool: workers.
        preset: what to make.
        shard: which part of the work this process does; the count is then this part's own.
        references: evaluation tasks to keep away from.
        seed: of all choices.
        out: the Parquet file; ``tasks.parquet`` in the folder when left out.
        on_outcome: told of each filtered task.
    """
    composer = RandomComposer(seeds, preset.mix, preset.target, seed=seed)
    wanted = preset.count
    for _ in range(_MAX_ROUNDS):
        have = len(numbers_in([folder.accepted]))
        missing = wanted - have
        if missing > 0:
            run_filters(
                composed(composer, folder, shard),
                folder,
                pool,
                enough=lambda tally, m=missing: tally.accepted >= m,  # type: ignore[misc]
                on_outcome=on_outcome,
            )
        result = run_dedupe([folder], folder, references, preset.caps)
        if len(result.kept) >= preset.count:
            break
        share = max(0.1, len(result.kept) / max(1, len(numbers_in([folder.accepted]))))
        wanted = max(wanted, int(preset.count / share * _SPARE))
    run_export(folder, out or folder.path / "tasks.parquet", preset.target, screened=len(references))
    return result
