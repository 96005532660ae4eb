"""Why a parameter may have no effect: rules, by name. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cuda_agent.synthesis.words import key_of, words

_SHIFT_BLIND = words(
    """
    softmax logsoftmax softmin instancenorm1d instancenorm2d instancenorm3d instancenorm batchnorm
    batchnorm1d batchnorm2d batchnorm3d groupnorm layernorm normalize std var diff
    scaleddotproductattention multiheadattention multiheadattentionforward crossentropy cosinesimilarity
    sub
    """
)
"""Operators that do not see a constant added to what they normalise over, or difference."""


def dead_rule(name: str, executed: Sequence[str]) -> str:
    """Why a parameter may have no effect at all; empty where no rule says so.

    Args:
        name: in the ``state_dict``.
        executed: calls of the task, in order.
    """
    if not re.search(r"(bias|shift|beta|offset)", name.rsplit(".", 1)[-1]):
        return ""
    blind = next((call for call in executed if key_of(call) in _SHIFT_BLIND), None)
    return f"a constant added before {blind} is taken out by it" if blind else ""
