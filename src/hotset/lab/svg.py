"""Plots as SVG, written by hand: lines over a share of memory, and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Line", "Panel", "heat_map", "line_plot"]

_WIDTH, _HEIGHT = 460, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 34, 46
_COLUMNS = 3
_TICKS = 5
_COLOURS = ("#1f5fbf", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#7f8c8d", "#16a085", "#34495e")
_CELL = 7


@dataclass(frozen=True, slots=True)
class Line:
    """`points` are (share of memory, percent) pairs, both from 0 to 100."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: a title and its lines, coloured in their order."""

    title: str
    lines: tuple[Line, ...]


def line_plot(panels: Sequence[Panel], *, x_label: str, y_label: str) -> str:
    """All panels in one picture, three in a row; the vertical axis goes from 0 to 100 %."""
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    drawn = [
        f'<g transform="translate({i % columns * _WIDTH},{i // columns * _HEIGHT})">'
        f"{_panel(panel, x_label, y_label)}</g>"
        for i, panel in enumerate(panels)
    ]
    return _picture(columns * _WIDTH, rows * _HEIGHT, drawn)


def _panel(panel: Panel, x_label: str, y_label: str) -> str:
    right = max((x for line in panel.lines for x, _ in line.points), default=1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + inner_width * x / right, _TOP + inner_height * (1 - y / 100)

    parts = [_text(_LEFT, 18, f"{panel.title}: {y_label}", size=13)]
    for i in range(_TICKS + 1):
        x, y = place(right * i / _TICKS, 100 * i / _TICKS)
        parts += [
            f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#eeeeee"/>',
            _text(_LEFT - 6, y + 4, f"{100 * i // _TICKS}", anchor="end"),
            _text(x, _HEIGHT - _BOTTOM + 16, f"{right * i / _TICKS:.3g}", anchor="middle"),
        ]
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_label, anchor="middle"))
    foot = _HEIGHT - _BOTTOM - 8 - 14 * len(panel.lines)
    for i, line in enumerate(panel.lines):
        colour = _COLOURS[i % len(_COLOURS)]
        placed = [place(x, y) for x, y in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in placed]
        parts.append(
            _text(_WIDTH - _RIGHT - 8, foot + 14 * i + 14, line.name, anchor="end", colour=colour)
        )
    return "".join(parts)


def heat_map(title: str, rows: Sequence[tuple[str, Sequence[float]]]) -> str:
    """One row of cells per layer, one cell per expert; values from 0 (white) to 1 (dark)."""
    columns = max(len(values) for _, values in rows)
    parts = [_text(_LEFT, 20, title, size=13)]
    for i, (name, values) in enumerate(rows):
        y = _TOP + i * _CELL
        parts.append(_text(_LEFT - 4, y + _CELL - 1, name, anchor="end", size=_CELL))
        parts += [
            f'<rect x="{_LEFT + at * _CELL}" y="{y}" width="{_CELL}" height="{_CELL}" '
            f'fill="#1f5fbf" fill-opacity="{value:.2f}"/>'
            for at, value in enumerate(values)
            if value > 0
        ]
    return _picture(_LEFT + columns * _CELL + _RIGHT, _TOP + len(rows) * _CELL + _RIGHT, parts)


def _picture(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", colour: str = "black", size: int = 11
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
