"""docs/contributing/how-to-add.md names all files to touch, and no other: the searches on the page find them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "forewarn"
PAGE = (ROOT / "docs" / "contributing" / "how-to-add.md").read_text(encoding="utf-8")
SECTIONS = {text.partition("\n")[0]: text for text in PAGE.split("\n## ")[1:]}
FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.\w+)`")


def path_of(name: str) -> Path:
    """A file of the page: from the top of the repository, or in src/forewarn."""
    return ROOT / name if (ROOT / name).exists() else SOURCE / name


def searched(section: str) -> set[Path]:
    """The files that the section's `git grep` finds."""
    (command,) = re.findall(r"^git grep -lE '(.+)' -- (.+)$", section, re.MULTILINE)
    pattern, folders = re.compile(command[0]), command[1].split()
    return {path for folder in folders for path in texts(ROOT / folder) if pattern.search(path.read_text("utf-8"))}


def texts(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in {".py", ".html", ".md", ".toml", ".txt", ".json", ".yml", ".yaml"}:
            yield path


def in_table(section: str) -> set[Path]:
    """The files in the first column of the section's table."""
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", section, re.MULTILINE)
    return {path_of(name) for row in rows for name in FILE.findall(row)}


@pytest.mark.parametrize("title", SECTIONS)
def test_a_table_has_the_files_that_its_search_finds(title: str) -> None:
    section = SECTIONS[title]
    generated = {ROOT / "docs" / "contributing" / "how-to-add.md"}
    assert in_table(section) == searched(section) - generated, "the code has changed: change the table, too"


@pytest.mark.parametrize("title", SECTIONS)
def test_every_file_that_a_section_names_exists(title: str) -> None:
    assert [name for name in FILE.findall(SECTIONS[title]) if not path_of(name).exists()] == []


def test_there_is_a_section_for_each_thing_that_people_add() -> None:
    assert len(SECTIONS) == 9
