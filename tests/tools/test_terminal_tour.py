"""docs/tour.svg: a picture without references whose commands exist, and which stands still where nothing moves."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from rich.text import Text

from tools.docs.executable_page import page_steps
from tools.docs.terminal_tour import (
    TITLE,
    TourCommand,
    TourScene,
    is_same_picture,
    shown_commands,
    shown_lines,
    tour_commands,
    tour_svg,
)

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = (DOCS / "tour.svg").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"
MAX_BYTES = 200_000


def a_scene(*lines: str) -> TourScene:
    return TourScene("A caption", (TourCommand("forewarn events", tuple(map(Text.from_ansi, lines))),))


def test_the_picture_is_a_small_svg_file_with_a_title() -> None:
    root = ElementTree.fromstring(PICTURE)
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == TITLE
    assert "forewarn restart web-0" in (root.findtext(f"{SVG}desc") or "")
    assert len(PICTURE.encode()) < MAX_BYTES


def test_the_picture_refers_to_nothing_outside_and_has_no_script() -> None:
    root = ElementTree.fromstring(PICTURE)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        *("svg", "title", "desc", "style", "rect", "path", "circle", "g", "text", "tspan"),
    }
    names = {name for element in root.iter() for name in element.attrib}
    assert not [name for name in names if "href" in name or name.startswith("on")]
    assert not re.search(r"url\(|@import|@font-face", PICTURE)


def test_the_picture_has_the_commands_of_the_tour() -> None:
    """`make docs` records it again."""
    assert shown_commands(PICTURE) == list(tour_commands())


def test_every_command_of_the_tour_is_in_the_first_tutorial_which_runs_them() -> None:
    tutorial = (DOCS / "tutorials" / "first-ten-minutes.md").read_text(encoding="utf-8")
    known = [step.command for step in page_steps(tutorial) if hasattr(step, "command")]
    assert [command for command in tour_commands() if command not in known] == []


def test_one_scene_shows_where_nothing_moves() -> None:
    without_motion = re.sub(r"@media\(prefers-reduced-motion.*?\n}", "", PICTURE, flags=re.DOTALL)
    assert "animation" not in without_motion
    assert len(re.findall(r"visibility:visible", without_motion)) == 1


def test_text_keeps_its_colours_and_special_characters() -> None:
    picture = tour_svg([a_scene("a \x1b[33m<b>\x1b[0m & c", "")])
    assert '<tspan class="yellow">&lt;b&gt;</tspan> &amp; c' in picture
    assert shown_lines(picture) == ["1. A caption", "$ forewarn events", "a <b> & c"]


def test_output_that_does_not_fit_is_cut() -> None:
    assert shown_lines(tour_svg([a_scene(*map(str, range(100)))]))[-1] == "…"


def test_a_recording_that_differs_only_in_ids_and_times_is_the_same_picture() -> None:
    old, new = tour_svg([a_scene("17:33:07 finished")]), tour_svg([a_scene("09:00:00 finished")])
    assert is_same_picture(old, new)
    assert not is_same_picture(old, tour_svg([a_scene("17:33:07 failed")]))
