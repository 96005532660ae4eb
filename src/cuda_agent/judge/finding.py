"""What a scan of sources or of a built library says. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cuda_agent.result import ViolationKind


class Severity(StrEnum):
    """What a finding does to the verdict."""

    VIOLATION = "violation"
    """Breaks a rule by itself."""
    NOTE = "note"
    """Suspicious but allowed; shown under ``notes``."""


@dataclass(frozen=True)
class Finding:
    """One thing seen.

    Attributes:
        kind: the rule it touches.
        severity: whether it breaks the rule.
        detail: what and where, one line.
    """

    kind: ViolationKind
    severity: Severity
    detail: str
