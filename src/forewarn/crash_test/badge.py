"""A badge with the grade of a crash test, as an SVG that needs nothing from elsewhere."""

from __future__ import annotations

from forewarn.crash_test.grading import Grade

_COLOURS = {  # dark enough for white text: a contrast of at least 4.5
    Grade.A: "#1a7f37",
    Grade.B: "#4d7c0f",
    Grade.C: "#8a6100",
    Grade.D: "#b45309",
    Grade.F: "#b42318",
    Grade.INCOMPLETE: "#57606a",
    Grade.NOT_RUN: "#57606a",
}
_LABEL = "crash test"
_CHARACTER_WIDTH = 7  # pixels, of a letter of the font at 11 pixels, rounded up
_PADDING = 12


def badge_svg(grade: Grade) -> str:
    """Return the text of an SVG file with a badge `crash test | A`, 20 pixels high, coloured by grade."""
    left = len(_LABEL) * _CHARACTER_WIDTH + _PADDING
    right = len(grade.value) * _CHARACTER_WIDTH + _PADDING
    width, title = left + right, f"{_LABEL}: {grade.value}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{title}">
<title>{title}</title>
<rect width="{width}" height="20" rx="3" fill="#24292f"/>
<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{left}z" fill="{_COLOURS[grade]}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{left / 2:g}" y="14">{_LABEL}</text>
<text x="{left + right / 2:g}" y="14">{grade.value}</text>
</g>
</svg>
"""
