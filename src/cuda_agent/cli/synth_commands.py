"""``cuda-agent synth ...``: one function a stage; each goes on where an earlier run stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuda_agent.cli.options import BaseUrlOption, TemperatureOption
from cuda_agent.cli.synth_output import print_dedupe, print_tally, progress, say, told
from cuda_agent.errors import UsageError

if TYPE_CHECKING:
    from cuda_agent.synthesis.dedupe.contamination import Reference
    from cuda_agent.synthesis.seed import Seed
    from cuda_agent.synthesis.stages.compose_stage import Composer
    from cuda_agent.synthesis.stages.filter_stage import Pool, Tally
    from cuda_agent.synthesis.stages.folder import SynthFolder
    from cuda_agent.synthesis.target import Target

DEFAULT_OUT = Path("cuda-agent-out/synth")

OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of the run.")]
SeedsOption = Annotated[
    Path | None, typer.Option("--seeds", metavar="FILE", help="Seeds; those in --out when left out.")
]
MixOption = Annotated[str, typer.Option("--mix", help="Shares by number of operators: paper or balanced.")]
TargetOption = Annotated[str, typer.Option("--target", help="Device to make tasks for: h200 or cpu.")]
ShardOption = Annotated[
    str, typer.Option("--shard", metavar="I/N", help="Part I of N; parts of several hosts merge at dedupe.")
]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Tasks at once.")]
CompileOption = Annotated[
    str | None, typer.Option("--compile", help="inductor (and time it), or aot_eager (capture only).")
]
AgainstOption = Annotated[
    list[str] | None,
    typer.Option("--against", metavar="SET", help="Evaluation set to keep away from; may be repeated."),
]
RandomOption = Annotated[int, typer.Option("--seed", help="Of all random choices.")]


def mine(
    only: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN", help="Ids to try, as 'torch.nn.*Pool*'; else all."),
    ] = None,
    *,
    out: OutOption = DEFAULT_OUT,
    source: Annotated[
        str, typer.Option("--source", help="Library to mine: torch, transformers, or all.")
    ] = "all",
    workers: WorkersOption = None,
    limit_s: Annotated[float, typer.Option("--limit", min=1, help="Seconds for one operator.")] = 90.0,
) -> None:
    """Walk the installed libraries and try every operator until its rules are known."""
    import os

    from cuda_agent.synthesis.mine.sources import wanted
    from cuda_agent.synthesis.stages.mine_stage import Mining, run_mine

    folder = _folder(out)
    subjects = wanted(source, only or ())
    mining = Mining(workers or len(os.sched_getaffinity(0)), limit_s)
    with progress("mined", len(subjects)) as step:
        counts = run_mine(folder, subjects, mining, on_subject=step)
    print(
        f"{counts['seed']} seeds in {folder.seeds}, {counts.total() - counts['seed']} operators without one"
    )
    for reason, number in counts.most_common():
        if reason != "seed":
            print(f"  {reason}: {number}")


def compose(
    *,
    count: Annotated[int, typer.Option("--count", min=1, help="Tasks in the folder afterwards.")] = 100,
    out: OutOption = DEFAULT_OUT,
    seeds: SeedsOption = None,
    mix: MixOption = "balanced",
    target: TargetOption = "h200",
    shard: ShardOption = "0/1",
    seed: RandomOption = 0,
    composer: Annotated[str, typer.Option("--composer", help="random, or chat:MODEL.")] = "random",
    base_url: BaseUrlOption = None,
    temperature: TemperatureOption = None,
) -> None:
    """Stack seeds into tasks; shapes are solved before anything is allocated."""
    from cuda_agent.synthesis.stages.compose_stage import run_compose
    from cuda_agent.synthesis.stages.folder import Shard

    folder = _folder(out)
    options = {"base_url": base_url, "temperature": temperature}
    made_by = _composer(composer, _seeds(folder, seeds), mix, target, seed=seed, **options)
    with progress("composed", count) as step:
        new = run_compose(made_by, folder, Shard.parse(shard), count=count, on_task=step)
    say(f"{new} new tasks in {folder.composed}")
    for what, number in made_by.dropped.most_common():
        say(f"  draws without a task: {what} {number}")


def filter_(
    *,
    out: OutOption = DEFAULT_OUT,
    target: TargetOption = "h200",
    workers: WorkersOption = None,
    compile_: CompileOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after so many accepted.")] = None,
) -> None:
    """Run every composed task through the filters; counts by filter at the end."""
    from cuda_agent.synthesis.stages.filter_stage import run_filters
    from cuda_agent.synthesis.stages.folder import read_numbered

    folder = _folder(out)
    tasks = list(read_numbered(folder.composed))
    if not tasks:
        raise UsageError(f"{folder.composed} holds no task", "Run cuda-agent synth compose first.")
    pool = _pool(_target(target, compile_), folder, workers)
    tally = run_filters(
        tasks,
        folder,
        pool,
        enough=lambda t: limit is not None and t.accepted >= limit,
        on_outcome=told(len(tasks)),
    )
    print_tally(tally)


def dedupe(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of shards; --out when left out.")
    ] = None,
    *,
    out: OutOption = DEFAULT_OUT,
    against: AgainstOption = None,
    per_cluster: Annotated[int, typer.Option(min=1, help="Tasks of one graph without sizes.")] = 3,
) -> None:
    """Merge shards; take out duplicates, contaminated tasks and what is over a cap."""
    from cuda_agent.synthesis.dedupe.selection import Caps
    from cuda_agent.synthesis.stages.dedupe_stage import run_dedupe

    folder = _folder(out)
    sources = [_folder(path) for path in folders or [out]]
    result = run_dedupe(sources, folder, _references(against), Caps(per_cluster=per_cluster))
    print_dedupe(result)


def export(
    *,
    out: OutOption = DEFAULT_OUT,
    file: Annotated[Path | None, typer.Option("--file", help="The Parquet file to write.")] = None,
    target: TargetOption = "h200",
    against: AgainstOption = None,
) -> None:
    """Write the kept tasks as Parquet, with a data card beside it."""
    from cuda_agent.synthesis.stages.export_stage import run_export

    folder = _folder(out)
    screened = len(_references(against))
    parquet, card = run_export(
        folder, file or folder.path / "tasks.parquet", _target(target, None), screened=screened
    )
    print(f"{parquet}\n{card}")


def audit(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Parquet, JSON lines or folder of tasks.")],
    *,
    out: OutOption = Path("cuda-agent-out/audit"),
    target: TargetOption = "cpu",
    workers: WorkersOption = None,
    compile_: CompileOption = None,
    against: AgainstOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Rows to look at.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Run a finished set, ours or the public one, through the same filters."""
    from cuda_agent.synthesis.stages.audit_stage import run_audit, summary

    folder = _folder(out)
    pool = _pool(_target(target, compile_), folder, workers)
    found = run_audit(
        source, folder, pool, references=_references(against), limit=limit, on_outcome=told(limit)
    )
    if json_:
        print(json.dumps(summary(found)))
        return
    print(f"{found.num_rows} rows, {found.exact_repeats} exact repeats, {found.distinct_ops} operator names")
    print(f"{found.wrong_labels} rows whose data_source names another number of operators")
    print_tally(found.tally)
    print_dedupe(found.dedupe)


def run(
    *,
    preset: Annotated[str, typer.Option(help="demo (CPU, 30 tasks) or full (H200).")] = "demo",
    count: Annotated[int | None, typer.Option("--count", min=1, help="Tasks wanted.")] = None,
    out: OutOption = DEFAULT_OUT,
    file: Annotated[Path | None, typer.Option("--file", help="The Parquet file to write.")] = None,
    seeds: SeedsOption = None,
    mix: Annotated[str | None, typer.Option("--mix", help="paper or balanced.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="h200 or cpu.")] = None,
    shard: ShardOption = "0/1",
    workers: WorkersOption = None,
    compile_: CompileOption = None,
    against: AgainstOption = None,
    seed: RandomOption = 0,
) -> None:
    """All stages until enough tasks are left; run again after a kill, it goes on."""
    from cuda_agent.synthesis.compose.mix import find_mix
    from cuda_agent.synthesis.stages.folder import Shard
    from cuda_agent.synthesis.stages.run_stage import PRESETS, run_all

    if preset not in PRESETS:
        raise UsageError(f"there is no preset {preset}", f"Choose one of: {', '.join(PRESETS)}.")
    chosen = PRESETS[preset]
    device = _target(target or chosen.target.name, compile_ or str(chosen.compile))
    chosen = replace(
        chosen, target=device, count=count or chosen.count, mix=find_mix(mix) if mix else chosen.mix
    )
    folder = _folder(out)
    result = run_all(
        _seeds(folder, seeds),
        folder,
        _pool(device, folder, workers),
        preset=chosen,
        shard=Shard.parse(shard),
        references=_references(against),
        seed=seed,
        out=file,
        on_outcome=told(chosen.count),
    )
    print_dedupe(result)
    print_tally(_counted(folder))
    print(f"{len(result.kept)} tasks in {file or folder.path / 'tasks.parquet'}")


# -- parts --------------------------------------------------------------------------------------


def _composer(
    name: str, seeds: Sequence[Seed], mix: str, target: str, *, seed: int, **options: Any
) -> Composer:
    from cuda_agent.synthesis.compose.llm_composer import LlmComposer, endpoint_completer
    from cuda_agent.synthesis.compose.mix import find_mix
    from cuda_agent.synthesis.compose.random_composer import RandomComposer
    from cuda_agent.synthesis.target import find_target

    if name == "random":
        return RandomComposer(seeds, find_mix(mix), find_target(target), seed=seed)
    kind, _, model = name.partition(":")
    if kind != "chat" or not model:
        raise UsageError(f"there is no composer {name}", "Choose random, or chat:MODEL.")
    return LlmComposer(seeds, find_mix(mix), endpoint_completer(model, **options), name=model, seed=seed)


def _folder(path: Path) -> SynthFolder:
    from cuda_agent.synthesis.stages.folder import SynthFolder

    return SynthFolder(path.absolute())


def _seeds(folder: SynthFolder, named: Path | None) -> list[Seed]:
    from cuda_agent.synthesis.seed import read_seeds
    from cuda_agent.synthesis.stages.compose_stage import seeds_path

    found = list(read_seeds(seeds_path(folder, named)))
    if not found:
        raise UsageError(
            "there are no seeds to compose from", "Name a file of seeds with --seeds (docs/synthesis.md)."
        )
    return found


def _target(name: str, compile_: str | None) -> Target:
    from cuda_agent.synthesis.target import Compile, find_target

    target = find_target(name)
    if compile_ is None:
        return target
    if compile_ not in list(Compile):
        raise UsageError(f"--compile {compile_} is not known", f"Choose one of: {', '.join(Compile)}.")
    return replace(target, compile=Compile(compile_))


def _pool(target: Target, folder: SynthFolder, workers: int | None) -> Pool:
    import os

    from cuda_agent.synthesis.floor import device_facts
    from cuda_agent.synthesis.stages.filter_stage import Pool

    num = workers or len(os.sched_getaffinity(0))
    return Pool(target, num_workers=num, cache=folder.cache, facts=device_facts(target.device))


def _references(sources: Sequence[str] | None) -> list[Reference]:
    from cuda_agent.config import cache_dir
    from cuda_agent.synthesis.stages.references import load_references

    cache = cache_dir() / "synth"
    return [
        reference
        for source in sources or ()
        for reference in load_references(source, cache=cache / "graphs.jsonl", inductor=cache / "inductor")
    ]


def _counted(folder: SynthFolder) -> Tally:
    """Counts over all runs in a folder."""
    from collections import Counter

    from cuda_agent.synthesis.jsonl import read_rows
    from cuda_agent.synthesis.stages.filter_stage import Tally

    refused = Counter(row["predicate"] for row in read_rows(folder.rejected))
    accepted = sum(1 for _ in read_rows(folder.accepted))
    return Tally(asked=accepted + refused.total(), refused=refused, accepted=accepted)
