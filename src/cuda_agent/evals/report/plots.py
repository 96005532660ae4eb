"""Plots as SVG, without any library; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_W, _H, _LEFT, _BOTTOM, _TOP, _RIGHT = 520, 300, 56, 44, 14, 14


@dataclass(frozen=True)
class Series:
    """Points of one run.

    Attributes:
        name: in the legend.
        points: (x, y, label); the label is told on hover.
    """

    name: str
    points: Sequence[tuple[float, float, str]]


def step_plot(series: Sequence[Series], *, title: str, x: str, y: str) -> str:
    """Shares over a threshold: x logarithmic from the least positive, y from 0 to 1."""
    xs = [p[0] for s in series for p in s.points if p[0] > 0]
    frame = _Frame((min(xs, default=0.5), max(xs, default=10.0)), (0.0, 1.0), log_x=True, log_y=False)
    body = []
    for i, one in enumerate(series):
        points = [(frame.x(p[0]), frame.y(p[1])) for p in one.points if p[0] > 0]
        path = " ".join(f"{'L' if n else 'M'}{a:.1f} {b:.1f}" for n, (a, b) in enumerate(points))
        dots = "".join(_dot(frame, p, i, 3) for p in one.points if p[0] > 0)
        body.append(f'<path class="line c{i % 6}" d="{path}"/>{dots}')
    marks = [(v, f"{v:g}") for v in (0.5, 0.8, 1, 1.5, 2, 3, 5, 10)]
    shares = [(v / 4, f"{25 * v} %") for v in range(5)]
    return _svg(frame, body, title=title, x=x, y=y, x_marks=marks, y_marks=shares)


def scatter_plot(series: Sequence[Series], *, title: str, x: str, y: str) -> str:
    """Both axes logarithmic and of one range, with the diagonal."""
    values = [v for s in series for p in s.points for v in p[:2] if v > 0]
    low, high = min(values, default=1.0) * 0.8, max(values, default=10.0) * 1.25
    frame = _Frame((low, high), (low, high), log_x=True, log_y=True)
    line = f'<path class="diagonal" d="M{frame.x(low)} {frame.y(low)}L{frame.x(high)} {frame.y(high)}"/>'
    dots = [_dot(frame, p, i, 4) for i, s in enumerate(series) for p in s.points if min(p[:2]) > 0]
    marks = [
        (10.0**e, _time(10.0**e)) for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ]
    return _svg(frame, [line, *dots], title=title, x=x, y=y, x_marks=marks, y_marks=marks)


def histogram(series: Sequence[Series], *, title: str, x: str) -> str:
    """How many speed-ups lie in each quarter of a power of two; x is taken from the points' first value."""
    counts = [_binned(s) for s in series]
    low = min((b for c in counts for b in c), default=-4) - 1
    high = max((b for c in counts for b in c), default=4) + 2
    most = max((n for c in counts for n in c.values()), default=1)
    frame = _Frame((2 ** (low / 4), 2 ** (high / 4)), (0.0, most * 1.1), log_x=True, log_y=False)
    body = []
    for i, binned in enumerate(counts):
        width = (frame.x(2**0.25) - frame.x(1)) / len(counts)
        for b, n in sorted(binned.items()):
            left, top = frame.x(2 ** (b / 4)) + i * width, frame.y(n)
            about = f"{2 ** (b / 4):.2f}x to {2 ** ((b + 1) / 4):.2f}x: {n}"
            body.append(
                f'<rect class="bar c{i % 6}" x="{left:.1f}" y="{top:.1f}" width="{max(width - 1, 1):.1f}" '
                f'height="{frame.y(0) - top:.1f}"><title>{escape(series[i].name)}: {about}</title></rect>'
            )
    one = f'<path class="diagonal" d="M{frame.x(1)} {frame.y(0)}V{_TOP}"/>'
    marks = [(2.0**e, f"{2.0**e:g}x") for e in range(math.floor(low / 4), math.ceil(high / 4) + 1)]
    step = max(1, math.ceil(most / 4))
    return _svg(
        frame,
        [one, *body],
        title=title,
        x=x,
        y="solutions",
        x_marks=marks,
        y_marks=[(float(n), str(n)) for n in range(0, most + 1, step)],
    )


def _binned(series: Series) -> dict[int, int]:
    found: dict[int, int] = {}
    for value, _, _ in series.points:
        if value > 0:
            place = math.floor(4 * math.log2(value))
            found[place] = found.get(place, 0) + 1
    return found


class _Frame:
    def __init__(self, x: tuple[float, float], y: tuple[float, float], *, log_x: bool, log_y: bool) -> None:
        self.x_range, self.y_range = x, y
        self.x = _scale(x, (_LEFT, _W - _RIGHT), log=log_x)
        self.y = _scale(y, (_H - _BOTTOM, _TOP), log=log_y)


def _scale(
    values: tuple[float, float], pixels: tuple[float, float], *, log: bool
) -> Callable[[float], float]:
    low, high = (math.log(v) for v in values) if log else values
    span = (high - low) or 1.0

    def place(value: float) -> float:
        part = ((math.log(value) if log else value) - low) / span
        return round(pixels[0] + part * (pixels[1] - pixels[0]), 1)

    return place


def _dot(frame: _Frame, point: tuple[float, float, str], series: int, radius: int) -> str:
    x, y, label = point
    place = f'cx="{frame.x(x)}" cy="{frame.y(y)}" r="{radius}"'
    return f'<circle class="dot c{series % 6}" {place}><title>{escape(label)}</title></circle>'


def _svg(
    frame: _Frame,
    body: Sequence[str],
    *,
    title: str,
    x: str,
    y: str,
    x_marks: Sequence[tuple[float, str]],
    y_marks: Sequence[tuple[float, str]],
) -> str:
    parts = []
    bottom, right = _H - _BOTTOM, _W - _RIGHT
    for value, words in x_marks:
        if frame.x_range[0] * 0.999 <= value <= frame.x_range[1] * 1.001:
            at = frame.x(value)
            parts.append(f'<path class="grid" d="M{at} {_TOP}V{bottom}"/>')
            parts.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle">{escape(words)}</text>')
    for value, words in y_marks:
        if frame.y_range[0] * 0.999 <= value <= frame.y_range[1] * 1.001:
            at = frame.y(value)
            parts.append(f'<path class="grid" d="M{_LEFT} {at}H{right}"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{escape(words)}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text class="axis" x="{(_LEFT + right) / 2}" y="{_H - 8}" text-anchor="middle">{escape(x)}</text>'
    )
    parts.append(
        f'<text class="axis" x="12" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 12 {middle})">{escape(y)}</text>'
    )
    inner = "".join([*parts, *body])
    return f'<svg viewBox="0 0 {_W} {_H}" role="img" aria-label="{escape(title)}">{inner}</svg>'


def _time(time_us: float) -> str:
    for limit, scale, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if time_us < limit:
            return f"{time_us / scale:g} {unit}"
    return f"{time_us / 1e6:g} s"
