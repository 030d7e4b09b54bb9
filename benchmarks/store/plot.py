"""A plot of decode rates over the memory for experts, as SVG; one panel per model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.store.results import ModelResults, Row, rows_of
from benchmarks.store.variants import IN_RAM

__all__ = ["as_svg"]

_WIDTH, _HEIGHT = 460, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 46
_COLUMNS = 3
_TICKS = 5
_BLUE, _RED, _GREEN, _GREY = "#1f5fbf", "#c0392b", "#2e8b57", "#888888"

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    colour: str
    dash: str
    points: Points


def as_svg(all_results: Sequence[ModelResults]) -> str:
    """The whole picture."""
    columns = min(_COLUMNS, len(all_results))
    n_rows = -(-len(all_results) // columns)
    panels = [
        f'<g transform="translate({i % columns * _WIDTH},{i // columns * _HEIGHT})">'
        f"{_panel(results)}</g>"
        for i, results in enumerate(all_results)
    ]
    width, height = columns * _WIDTH, n_rows * _HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(panels)
        + "\n</svg>\n"
    )


def _panel(results: ModelResults) -> str:
    lines = _lines(results)
    top = 1.1 * max(y for line in lines for _, y in line.points)
    right = max(120.0, 1.05 * max(x for line in lines for x, _ in line.points))

    def place(x: float, y: float) -> tuple[float, float]:
        inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + inner_width * x / right, _TOP + inner_height * (1 - y / top)

    title = f"{results.model.mix}, {results.model.locality} routing"
    parts = [_text(_LEFT, 18, f"{title}: decode, tokens/s", size=13)]
    for i in range(_TICKS + 1):
        x, y = place(right * i / _TICKS, top * i / _TICKS)
        parts += [
            f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#eeeeee"/>',
            _text(_LEFT - 6, y + 4, f"{top * i / _TICKS:.1f}", anchor="end"),
            _text(x, _HEIGHT - _BOTTOM + 16, f"{right * i / _TICKS:.0f}", anchor="middle"),
        ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        _text(middle, _HEIGHT - 12, "memory for experts, % of their bytes", anchor="middle")
    )
    for i, line in enumerate(lines):
        placed = [place(x, y) for x, y in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{line.colour}" stroke-width="1.8" '
            f'stroke-dasharray="{line.dash}"/>'
        )
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{line.colour}"/>'
                  for x, y in placed]  # fmt: skip
        parts.append(_text(_LEFT + 8, _TOP + 12 + 14 * i, line.name, colour=line.colour))
    return "".join(parts)


def _lines(results: ModelResults) -> list[_Line]:
    rows = {
        variant.key: row
        for variant, row in zip(
            [v for v in results.variants if v.key != "few"], rows_of(results), strict=True
        )
    }
    pairs = [(rows[cell.store.key], rows[cell.mmap.key]) for cell in results.cells]
    pairs.sort(key=lambda pair: _share(pair[0]))
    in_ram = rows[IN_RAM.key].decode
    return [
        _Line("hotset", _BLUE, "", [(_share(ours), ours.decode) for ours, _ in pairs]),
        _Line("stock, mmap", _RED, "", [(_share(ours), mmap.decode) for ours, mmap in pairs]),
        _Line("physical limit", _GREEN, "5 3",
              [(_share(ours), ours.limit_rate or 0.0) for ours, _ in pairs]),
        _Line("stock, in RAM", _GREY, "2 3", [(0.0, in_ram), (120.0, in_ram)]),
    ]  # fmt: skip


def _share(row: Row) -> float:
    return 100 * (row.arena_share or 0.0)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", colour: str = "black", size: int = 11
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
