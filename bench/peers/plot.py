"""Bars as SVG, without a library: a name, a bar on a logarithmic scale, the figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, LEFT, RIGHT = 860, 260, 90
ROW, TOP, BOTTOM = 24, 46, 30
FONT = 'font-family="sans-serif" font-size="13"'
OURS, THEIRS, INK, GRID = "#2a78d6", "#8a94a3", "#1f2733", "#d5dae1"


class Bar(NamedTuple):
    """One line."""

    title: str
    value: float
    ours: bool


def bars(title: str, unit: str, found: Sequence[Bar]) -> str:
    """The picture. Values are above 0; an empty sequence makes an empty frame."""
    height = TOP + ROW * len(found) + BOTTOM
    low = floor(log10(min((bar.value for bar in found), default=1)))
    high = max(low + 1, ceil(log10(max((bar.value for bar in found), default=10))))
    scale = (WIDTH - LEFT - RIGHT) / (high - low)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15" font-weight="bold" fill="{INK}">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        x = LEFT + (power - low) * scale
        parts.append(f'<line x1="{x:.0f}" y1="{TOP - 6}" x2="{x:.0f}" y2="{height - BOTTOM}" stroke="{GRID}"/>')
        parts.append(
            f'<text x="{x:.0f}" y="{height - 10}" text-anchor="middle" fill="{INK}">{_short(10**power)}</text>'
        )
    for number, bar in enumerate(found):
        y, length = TOP + number * ROW, (log10(bar.value) - low) * scale
        parts.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end" fill="{INK}">{escape(bar.title)}</text>')
        fill = OURS if bar.ours else THEIRS
        parts.append(f'<rect x="{LEFT}" y="{y + 2}" width="{max(1, length):.0f}" height="{ROW - 8}" fill="{fill}"/>')
        parts.append(f'<text x="{LEFT + length + 6:.0f}" y="{y + 14}" fill="{INK}">{_short(bar.value)} {unit}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"
