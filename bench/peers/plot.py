"""Bars and curves as SVG, without a library."""

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
    """A name, a bar on a logarithmic scale, the figure. Values are above 0; an empty sequence makes an empty frame."""
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


class Point(NamedTuple):
    """Where one thing that grows has come to."""

    at: float
    rate: float
    cpu_us: float


CURVE_HEIGHT, PANEL = 300, 350


def curve(title: str, axis: str, points: Sequence[Point]) -> str:
    """Two panels side by side over the same axis: records per second, CPU per record. Steps of equal width: what grows
    grows by factors, and from 0."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {CURVE_HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{CURVE_HEIGHT}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15" font-weight="bold" fill="{INK}">{escape(title)}</text>',
        *_panel(60, "records/s", [(point.at, point.rate) for point in points]),
        *_panel(60 + WIDTH // 2, "µs", [(point.at, point.cpu_us) for point in points]),
        f'<text x="{WIDTH / 2:.0f}" y="{CURVE_HEIGHT - 8}" text-anchor="middle" fill="{INK}">{escape(axis)}</text>',
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(left: int, unit: str, found: Sequence[tuple[float, float]]) -> list[str]:
    top, bottom = 60, CURVE_HEIGHT - 50
    highest = max((value for _, value in found), default=1) or 1
    width = PANEL / max(1, len(found) - 1)
    places = [
        (left + number * width, bottom - (bottom - top) * value / highest) for number, (_, value) in enumerate(found)
    ]
    line = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
    parts = [
        f'<line x1="{left}" y1="{bottom}" x2="{left + PANEL}" y2="{bottom}" stroke="{GRID}"/>',
        f'<text x="{left}" y="{top - 24}" fill="{INK}">{unit}</text>',
        f'<polyline points="{line}" fill="none" stroke="{OURS}" stroke-width="2"/>',
    ]
    for (x, y), (at, value) in zip(places, found, strict=True):
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3.5" fill="{OURS}"/>')
        parts.append(f'<text x="{x:.0f}" y="{y - 8:.0f}" text-anchor="middle" fill="{INK}">{_short(value)}</text>')
        parts.append(f'<text x="{x:.0f}" y="{bottom + 18}" text-anchor="middle" fill="{INK}">{_short(at)}</text>')
    return parts


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"
