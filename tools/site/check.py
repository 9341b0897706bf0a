"""Checks that a built site loads nothing from elsewhere (`python -m tools.site.check DIRECTORY`).

A page may link to other sites; it may not load a script, style, font, picture or frame from them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_ELSEWHERE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_CSS_ADDRESS = re.compile(r"(?:url\(\s*|@import\s+)[\"']?([^\"')\s;]+)", re.IGNORECASE)
# Attributes whose address a browser loads by itself. `a href` is not among them.
_LOADING = {
    *(("script", "src"), ("img", "src"), ("img", "srcset"), ("iframe", "src"), ("embed", "src"), ("object", "data")),
    *(("source", "src"), ("source", "srcset"), ("video", "src"), ("video", "poster"), ("audio", "src")),
    *(("track", "src"), ("use", "href"), ("image", "href"), ("input", "src"), ("form", "action")),
}
_LINKS_NOT_LOADED = {"canonical", "next", "prev", "alternate"}


def external_resources(site: Path) -> Iterator[str]:
    """What pages and styles below `site` load from other hosts, each as `FILE: ADDRESS`."""
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            parser = _ResourceParser()
            parser.feed(path.read_text(encoding="utf-8"))
            addresses = parser.addresses
        elif path.suffix in (".css", ".svg"):
            addresses = _CSS_ADDRESS.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        yield from (f"{path.relative_to(site)}: {address}" for address in addresses if _ELSEWHERE.match(address))


class _ResourceParser(HTMLParser):
    """Collects the addresses that a browser loads for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link" and not _LINKS_NOT_LOADED & set(values.get("rel", "").split()):
            self.addresses.append(values.get("href", ""))
        self.addresses += [value for name, value in values.items() if (tag, name) in _LOADING]
        self.addresses += _CSS_ADDRESS.findall(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self.get_starttag_text() and str(self.get_starttag_text()).startswith("<style"):
            self.addresses += _CSS_ADDRESS.findall(data)


if __name__ == "__main__":
    found = list(external_resources(Path(sys.argv[1])))
    sys.exit("the site loads from elsewhere:\n" + "\n".join(found) if found else 0)
