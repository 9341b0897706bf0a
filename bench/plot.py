"""Draws a result as SVG: one bar per figure, as long as its share of the target."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from bench.figure import Figure
from bench.result import Result
from bench.target import Verdict

_WIDTH, _LEFT, _RIGHT, _LINE, _TOP = 960, 430, 140, 26, 64
_LEAST, _MOST = 0.05, 20.0  # shares of the target, on a logarithmic scale
_GRID_LINES = (0.1, 0.3, 1.0, 3.0, 10.0)
_PLAIN = "#7a7a7a"
_COLOURS = {Verdict.MISSED: "#b3372f", Verdict.BELOW: "#b07a1e"}
_GOOD = "#2f7d4f"


def plot(result: Result) -> str:
    """Return the drawing of all figures that have a target."""
    bars = [figure for figure in result.figures if figure.value and figure.target.share(figure.value)]
    height = _TOP + _LINE * len(bars) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-process_tree="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(16, 26, f"forewarn in figures, {result.at[:10]}", size=17),
        _text(16, 46, "bar: measured value as a share of the target, logarithmic; 1 is reached", colour=_PLAIN),
        *(part for number, figure in enumerate(bars) for part in _bar(figure, _TOP + _LINE * number)),
        *(_grid_line(share, height) for share in _GRID_LINES),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def x_position(share: float) -> float:
    """Return the x coordinate of a share of the target."""
    inner = _WIDTH - _LEFT - _RIGHT
    clipped = min(max(share, _LEAST), _MOST)
    return _LEFT + inner * math.log(clipped / _LEAST) / math.log(_MOST / _LEAST)


def _bar(figure: Figure, top: int) -> list[str]:
    assert figure.value is not None
    share = figure.target.share(figure.value)
    assert share is not None
    end = x_position(share)
    colour = _COLOURS.get(figure.verdict, _GOOD)
    return [
        _text(_LEFT - 10, top + 17, figure.target.title, anchor="end"),
        f'<rect x="{_LEFT}" y="{top + 5}" width="{end - _LEFT:.1f}" height="{_LINE - 10}" fill="{colour}"/>',
        _text(end + 6, top + 17, f"{figure.text} ({figure.target.text})", colour=colour, size=11),
    ]


def _grid_line(share: float, height: int) -> str:
    at = x_position(share)
    width = 2 if share == 1 else 0.5
    line = (
        f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{height - 30}" stroke="{_PLAIN}" stroke-width="{width}"/>'
    )
    return line + _text(at, height - 14, f"{share:g}", anchor="middle", colour=_PLAIN)


def _text(left: float, top: float, text: str, *, anchor: str = "start", colour: str = "#1a1a1a", size: int = 13) -> str:
    return (
        f'<text x="{left:.1f}" y="{top}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
