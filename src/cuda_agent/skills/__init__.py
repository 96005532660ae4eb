"""The texts an agent reads: SKILL.md for a workspace, the first two messages of an episode.

Texts are data beside this module (``cpu/``, ``cuda/``, ``shared/``); ``@@NAME@@`` marks what is filled in.
"""

from __future__ import annotations

import re
from importlib import resources

from cuda_agent.backends import toolchain
from cuda_agent.backends.base import DeviceFacts
from cuda_agent.config import Precision, Track

_PRECISION_WORDS = {
    Precision.DEFAULT: "PyTorch's defaults (matrix products in float32; convolutions may use TF32).",
    Precision.FP32: "full float32 everywhere, TF32 off for matrix products and convolutions.",
    Precision.TF32: "TF32 allowed in float32 matrix products and convolutions, and nowhere else.",
}
_CPU_PRECISION = "full float32 everywhere (a CPU has no TF32)."
_PLACEHOLDER = re.compile(r"@@([A-Z_]+)@@")


def skill_text(backend: str, *, track: Track, precision: Precision, facts: DeviceFacts) -> str:
    """SKILL.md of a workspace.

    Args:
        backend: ``cpu`` or ``cuda``.
        track, precision: the contract whose criteria are told.
        facts: of the device timed on; unknown ones are said to be unknown.
    """
    torch = toolchain.find_torch()
    fast_math = " --use_fast_math" if track is Track.PAPER else ""
    values = {
        "FACTS": facts_text(facts),
        "WORKFLOW": _shared("workflow"),
        "RULES": _shared("rules"),
        "SCORING": _shared("scoring"),
        "CRITERIA": _shared(f"criteria_{track}"),
        "PRECISION": _CPU_PRECISION if backend == "cpu" else _PRECISION_WORDS[precision],
        "NVCC_FLAGS": f"-O3{fast_math}",
        "STANDARD": (torch.cxx_standard if torch else "c++17").removeprefix("c++"),
        "UNITS": str(facts.num_units) if facts.num_units else "all",
    }
    text = _read(f"{backend}/SKILL.md")
    # Twice: a filled-in part may hold a placeholder itself.
    for _ in range(2):
        text = _PLACEHOLDER.sub(lambda match: values[match[1]], text)
    return text


def unknown_facts(backend: str) -> DeviceFacts:
    """Facts of a device that is not here."""
    return DeviceFacts(kind=backend, name="unknown", arch="unknown", num_units=0, memory_bytes=0)


def facts_text(facts: DeviceFacts) -> str:
    """Device facts as a table."""
    units = "SMs" if facts.kind == "cuda" else "cores used"
    cache = "L2 cache" if facts.kind == "cuda" else "last-level cache"
    rows = [
        ("device", facts.name),
        ("architecture", facts.arch),
        (units, str(facts.num_units or "unknown")),
        ("memory", _size(facts.memory_bytes)),
        (cache, _size(facts.cache_bytes)),
        ("read bandwidth, memory (measured)", _rate(facts.read_bandwidth, "B/s")),
        ("read bandwidth, cache (measured)", _rate(facts.cache_read_bandwidth, "B/s")),
        ("peak FP32 rate", _rate(facts.peak_fp32_flops, "FLOP/s")),
    ]
    if facts.driver:
        rows.append(("driver", facts.driver))
    if facts.read_bandwidth and facts.peak_fp32_flops:
        ridge = facts.peak_fp32_flops / facts.read_bandwidth
        rows.append(("FLOP for each byte read before arithmetic, not memory, limits", f"{ridge:.0f}"))
    lines = ["| fact | value |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows)])


def system_prompt() -> str:
    """First message of an episode: who the agent is and how it acts."""
    return _read("shared/system.md").strip()


def task_prompt(backend: str, *, track: Track, precision: Precision) -> str:
    """Second message of an episode: what is asked, and where to start."""
    values = _task_values(backend, track, precision)
    return _PLACEHOLDER.sub(lambda match: values[match[1]], _read("shared/task.md")).strip()


def single_turn_prompt(backend: str, *, track: Track, precision: Precision, skill: str, code: str) -> str:
    """The one message of a single-turn answer: no tools, no feedback, files in the answer's text.

    Args:
        backend: ``cpu`` or ``cuda``.
        track, precision: the contract judged under.
        skill: SKILL.md of the workspace.
        code: source of the reference.
    """
    values = {**_task_values(backend, track, precision), "SKILL": skill.strip(), "MODEL": code.strip()}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], _shared("single_turn"))


def _task_values(backend: str, track: Track, precision: Precision) -> dict[str, str]:
    contract = f"track `{track}`"
    if track is Track.MATCHED:
        contract += f", precision `{precision}`"
    return {
        "KIND": "CUDA" if backend == "cuda" else "C++ (CPU)",
        "SUFFIX": "cu" if backend == "cuda" else "cpp",
        "CONTRACT": contract,
    }


def _shared(name: str) -> str:
    return _read(f"shared/{name}.md").strip()


def _read(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def _size(num_bytes: int | None) -> str:
    if not num_bytes:
        return "unknown"
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _rate(value: float | None, unit: str) -> str:
    if not value:
        return "unknown"
    scale, prefix = (1e12, "T") if value >= 1e12 else (1e9, "G")
    return f"{value / scale:.3g} {prefix}{unit}"
