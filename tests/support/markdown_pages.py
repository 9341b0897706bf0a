"""Reads the Markdown pages of the project: links, headings and code blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^( *)(```+)([\w-]*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced code block: its language ("" without one) and its text."""

    language: str
    text: str


def pages() -> list[Path]:
    """README, CONTRIBUTING, CHANGELOG, and all pages of docs/ and examples/."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


@cache
def without_blocks(page: Path) -> str:
    """The text of a page without its code blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


@cache
def blocks(page: Path) -> list[CodeBlock]:
    """The code blocks of a page, in order."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [CodeBlock(language, text) for _, _, language, text in found]


def links(page: Path) -> list[str]:
    """The addresses of a page's links and pictures within the project."""
    return [address for address in _LINK.findall(without_blocks(page)) if not re.match(r"[a-z]+:", address)]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#{1,6} (.+)$", without_blocks(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)
