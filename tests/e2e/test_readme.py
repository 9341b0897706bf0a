"""The README: short, with pictures and a tour, two commands that exist, and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 150
MAX_PICTURE_BYTES = 300_000


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < MAX_LINES


def test_the_two_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert re.findall(r"^make (\w+)", commands, re.MULTILINE) == ["run", "test"]
    for target in re.findall(r"\bmake (\w+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_the_readme_shows_a_grade_the_portal_and_a_tour_in_the_terminal() -> None:
    pictures = re.findall(r"^!\[(.+)\]\((.+)\)$", README, re.MULTILINE)
    assert [path for _, path in pictures] == ["docs/report.png", "docs/portal.png", "docs/tour.svg"]
    assert all((ROOT / path).stat().st_size < MAX_PICTURE_BYTES for _, path in pictures)


def test_every_link_of_the_readme_has_a_target() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert len(targets) > 20
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_every_tutorial_is_linked() -> None:
    for page in (ROOT / "docs" / "tutorials").glob("*.md"):
        assert f"(docs/tutorials/{page.name})" in README, page
