"""The same as a drawing: a bar per figure, as long as what is there of what is wanted. SVG, by hand."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from bench.figure import Figure
from bench.result import Result
from bench.target import Verdict

_WIDTH, _LEFT, _RIGHT, _LINE, _TOP = 960, 430, 140, 26, 64
_LEAST, _MOST = 0.05, 20.0  # shares of what is wanted, on a logarithmic scale
_MARKS = (0.1, 0.3, 1.0, 3.0, 10.0)
_PLAIN = "#7a7a7a"
_COLOURS = {Verdict.MISSED: "#b3372f", Verdict.BELOW: "#b07a1e"}
_GOOD = "#2f7d4f"


def plot(result: Result) -> str:
    bars = [figure for figure in result.figures if figure.value and figure.target.share(figure.value)]
    height = _TOP + _LINE * len(bars) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(16, 26, f"forewarn in figures, {result.at[:10]}", size=17),
        _text(16, 46, "bar: measured as a share of what must be reached, logarithmic; 1 is the line", colour=_PLAIN),
        *(part for number, figure in enumerate(bars) for part in _bar(figure, _TOP + _LINE * number)),
        *(_mark(mark, height) for mark in _MARKS),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def place(share: float) -> float:
    """Where on the scale a share is, from left to right."""
    inner = _WIDTH - _LEFT - _RIGHT
    held = min(max(share, _LEAST), _MOST)
    return _LEFT + inner * math.log(held / _LEAST) / math.log(_MOST / _LEAST)


def _bar(figure: Figure, top: int) -> list[str]:
    assert figure.value is not None
    share = figure.target.share(figure.value)
    assert share is not None
    end = place(share)
    colour = _COLOURS.get(figure.verdict, _GOOD)
    return [
        _text(_LEFT - 10, top + 17, figure.target.what, anchor="end"),
        f'<rect x="{_LEFT}" y="{top + 5}" width="{end - _LEFT:.1f}" height="{_LINE - 10}" fill="{colour}"/>',
        _text(end + 6, top + 17, f"{figure.words} ({figure.target.words})", colour=colour, size=11),
    ]


def _mark(share: float, height: int) -> str:
    at = place(share)
    width = 2 if share == 1 else 0.5
    line = (
        f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{height - 30}" stroke="{_PLAIN}" stroke-width="{width}"/>'
    )
    return line + _text(at, height - 14, f"{share:g}", anchor="middle", colour=_PLAIN)


def _text(
    left: float, top: float, words: str, *, anchor: str = "start", colour: str = "#1a1a1a", size: int = 13
) -> str:
    return (
        f'<text x="{left:.1f}" y="{top}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">'
        f"{escape(words)}</text>"
    )
