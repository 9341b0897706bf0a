"""README, CONTRIBUTING and docs/: links lead somewhere, pages are short and in the navigation, messages are real."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.markdown_pages import ROOT, anchors, blocks, links, pages, without_blocks

DOCS = ROOT / "docs"
MAX_WORDS = 1500
# Written by tools/docs from the code: as long as what they list.
GENERATED = {
    *("reference/metrics.md", "reference/settings.md"),
}
PAGES = pages()
NAVIGATION = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    for address in links(page):
        path, _, anchor = address.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{address} does not exist"
        assert target.is_relative_to(ROOT), f"{address} is outside of the project"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{address}: the page has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_link_texts_say_where_they_lead(page: Path) -> None:
    texts = re.findall(r"\[([^\]]+)\]\([^)\s]+\)", without_blocks(page))
    assert [text for text in texts if re.fullmatch(r"(here|Here|this|link|[a-z][\w/-]*\.md)", text)] == []


def test_hand_written_pages_have_at_most_1500_words() -> None:
    counts = {page.relative_to(DOCS).as_posix(): len(page.read_text(encoding="utf-8").split()) for page in in_docs()}
    assert {name: words for name, words in counts.items() if words > MAX_WORDS and name not in GENERATED} == {}
    assert all(counts[name] > MAX_WORDS for name in GENERATED), "a page here is short: count it"


def test_every_page_has_one_title() -> None:
    for page in in_docs():
        titles = re.findall(r"^# .+$", without_blocks(page), re.MULTILINE)
        assert len(titles) == 1, page
        assert page.read_text(encoding="utf-8").startswith(titles[0]), page


def test_the_navigation_of_the_site_has_every_page_once() -> None:
    listed = list(addresses(NAVIGATION))
    decisions = {page.relative_to(DOCS).as_posix() for page in (DOCS / "contributing" / "decisions").glob("0*.md")}
    expected = {page.relative_to(DOCS).as_posix() for page in in_docs()} - decisions  # their index lists them
    assert sorted(listed) == sorted({*expected, "project/CHANGELOG.md", "project/CONTRIBUTING.md"})


def test_diagrams_are_drawn_and_not_typed() -> None:
    typed = [
        f"{page.relative_to(ROOT)}: {block.text[:60]}"
        for page in PAGES
        for block in blocks(page)
        if block.language in ("", "text") and re.search("[│┌└┐┘►◄▼▲]|-->", block.text)
    ]
    assert typed == []


def test_messages_that_the_troubleshooting_page_quotes_are_those_of_the_product() -> None:
    page = (DOCS / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^- `([^`]+)`$", page, re.MULTILINE)
    assert len(quoted) > 15
    missing = [message for message in quoted if not is_quoted(message, product_messages())]
    assert missing == []


def is_quoted(message: str, texts: str) -> bool:
    """Whether the message is a part of one of the texts, a line each; … in the message stands for anything."""
    return re.search(".*".join(re.escape(part) for part in message.split("…")), texts) is not None


@cache
def product_messages() -> str:
    """The source, with literals over several lines joined, and with … in place of values."""
    sources = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "src" / "forewarn").rglob("*.py")))
    joined = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))
    return re.sub(r"\{[^{}\n]*\}|%[sdg]", "…", joined).replace('\\"', '"')


def in_docs() -> list[Path]:
    return [page for page in PAGES if page.is_relative_to(DOCS)]


def addresses(navigation: Any) -> Iterator[str]:
    """All pages of a navigation, however deep."""
    match navigation:
        case str():
            yield navigation
        case list():
            for part in navigation:
                yield from addresses(part)
        case dict():
            yield from addresses(list(navigation.values()))
        case _:
            raise TypeError(navigation)
