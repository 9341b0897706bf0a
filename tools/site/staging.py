"""Stages the pages of the site: docs/, and the files outside it that pages link to.

python -m tools.site.staging SCRIPTS

The generator knows only its own folder. A page that a page links to becomes a page of the site too, another file is
copied, and of a folder there is a page that lists its files. The scripts that the site ships are copied from SCRIPTS.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STAGED = ROOT / "build" / "site-pages"
_ASSETS = Path(__file__).parent
_ICON = ROOT / "src" / "forewarn" / "web" / "portal" / "static" / "icon.svg"
_OUTSIDE = "project"  # the folder of the site for what is outside docs/
_FENCE = re.compile(r"^(```.*?^```|~~~.*?^~~~)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_EXTRA_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")  # in the navigation, although pages need not link to them


def stage(target: Path, scripts: Path) -> None:
    """Write the pages of the site to `target`, which is emptied first, with the scripts in the folder `scripts`.

    Raises FileNotFoundError, with the page in its message, if a page links to a file that does not exist.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target)
    pending = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in _EXTRA_PAGES)]
    done: set[Path] = set()
    while pending:
        page = pending.pop()
        if page in done:
            continue
        done.add(page)
        linked: list[Path] = []
        place = target / site_path(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(rewrite_links(page, linked.append), encoding="utf-8")
        for path in linked:
            if path.suffix == ".md":
                pending.append(path)
            elif path.is_dir():
                pending.extend(_stage_folder(path, target))
            elif not path.is_relative_to(DOCS):
                _copy(path, target)
    assets = target / "assets"
    assets.mkdir(exist_ok=True)
    for path in (*scripts.iterdir(), _ASSETS / "diagrams.js", _ASSETS / "site.css", _ICON):
        shutil.copyfile(path, assets / path.name)


def site_path(path: Path) -> Path:
    """The place of a file or folder of the project in the site; a folder has an `index.md`."""
    place = path.relative_to(DOCS) if path.is_relative_to(DOCS) else _OUTSIDE / path.relative_to(ROOT)
    if path.name == "README.md":
        return place.with_name("index.md")
    return place / "index.md" if path.is_dir() else place


def rewrite_links(page: Path, found: Callable[[Path], object]) -> str:
    """The text of a page with the links of the site; calls `found` with each file or folder that it links to."""

    def link(match: re.Match[str]) -> str:
        address, anchor = match[1], match[2] or ""
        if re.match(r"[a-z]+:", address):
            return match[0]
        path = Path(os.path.normpath(page.parent / address))
        if not path.exists():
            raise FileNotFoundError(f"{page.relative_to(ROOT)} links to {address}, which does not exist")
        found(path)
        return os.path.relpath(site_path(path), site_path(page).parent) + anchor

    parts = _FENCE.split(page.read_text(encoding="utf-8"))
    return "".join(part if _FENCE.match(part) else _LINK.sub(link, part) for part in parts)


def _copy(path: Path, target: Path) -> None:
    place = target / site_path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place)


def _stage_folder(folder: Path, target: Path) -> list[Path]:
    """Write a page that lists the files of a folder, and copy them; returns the pages among them."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    place = target / site_path(folder)
    if not (folder / "README.md").exists() and not (folder / "index.md").exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        name = folder.relative_to(ROOT).as_posix()
        lines = "".join(f"- [{path.name}]({path.name})\n" for path in files)
        place.write_text(f"# {name}\n\n{lines}", encoding="utf-8")
    for path in files:
        if path.suffix != ".md" and not path.is_relative_to(DOCS):
            _copy(path, target)
    return [path for path in files if path.suffix == ".md"]


if __name__ == "__main__":
    stage(STAGED, Path(sys.argv[1]))
