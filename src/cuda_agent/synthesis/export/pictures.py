"""Bar charts as SVG text: a histogram or a list of counts, readable on light and dark pages. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

_ROW, _BAR, _LEFT, _WIDTH, _TOP = 20, 13, 190, 640, 34
_INK, _FILL, _FAINT = "#57606a", "#2f6fb0", "#8b949e"


def bar_chart(title: str, bars: Sequence[tuple[str, float]], *, unit: str = "tasks") -> str:
    """Horizontal bars with their values.

    Args:
        title: above the bars.
        bars: (label, value) from top to bottom; values not negative.
        unit: of the values, for readers of the title.
    """
    height = _TOP + _ROW * max(1, len(bars)) + 8
    largest = max((value for _, value in bars), default=0) or 1
    total = sum(value for _, value in bars) or 1
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<text x="0" y="16" font-size="14" font-weight="600" fill="{_INK}">{escape(title)} ({unit})</text>',
    ]
    for index, (label, value) in enumerate(bars):
        y = _TOP + _ROW * index
        length = (_WIDTH - _LEFT - 110) * value / largest
        text = f"{value:g} ({100 * value / total:.1f} %)"
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 11}" text-anchor="end" fill="{_INK}">{escape(label)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2" fill="{_FILL}"/>',
            f'<text x="{_LEFT + length + 6:.1f}" y="{y + 11}" fill="{_FAINT}">{text}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def log_bins(values: Sequence[float], *, per_decade: int = 4) -> list[tuple[float, float, int]]:
    """Bins of equal ratio that cover the values: (low, high, count), empty ones between included."""
    if not values:
        return []
    edges = [math.floor(per_decade * math.log10(value) + 1e-9) for value in values]
    first, last = min(edges), max(edges)
    counts = {edge: edges.count(edge) for edge in set(edges)}
    return [
        (10 ** (edge / per_decade), 10 ** ((edge + 1) / per_decade), counts.get(edge, 0))
        for edge in range(first, last + 1)
    ]


def histogram(title: str, values: Sequence[float], *, scale: float = 1.0, unit: str = "") -> str:
    """A histogram over bins of equal ratio.

    Args:
        title: above it.
        values: positive numbers.
        scale: factor from the values to what is shown.
        unit: of what is shown.
    """
    bars = [
        (f"{low * scale:.3g} to {high * scale:.3g} {unit}".rstrip(), float(count))
        for low, high, count in log_bins([value for value in values if value > 0])
    ]
    return bar_chart(title, bars)
