"""Tables of operator names, written as text."""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def key_of(name: str) -> str:
    """The last part of a public name in one spelling: ``nn.LeakyReLU`` and ``F.leaky_relu_`` agree."""
    return re.sub(r"_", "", name.rsplit(".", 1)[-1]).lower()
