"""The documentation site: what is staged for its generator, and that nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.markdown_pages import blocks
from tools.docs.executable_page import CommandStep, page_steps
from tools.site.check import external_resources
from tools.site.staging import DOCS, ROOT, site_path, stage


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The staged pages, with a stand-in for the scripts from npm."""
    scripts, target = tmp_path_factory.mktemp("scripts"), tmp_path_factory.mktemp("staged") / "pages"
    (scripts / "mermaid.min.js").write_text("", encoding="utf-8")
    stage(target, scripts)
    return target


def test_all_pages_and_scripts_are_staged(staged: Path) -> None:
    pages = {page.relative_to(DOCS) for page in DOCS.rglob("*.md")}
    assert pages <= {page.relative_to(staged) for page in staged.rglob("*.md")}
    assets = {path.name for path in (staged / "assets").iterdir()}
    assert assets == {"mermaid.min.js", "diagrams.js", "site.css", "icon.svg"}


def test_the_terminal_of_docs_index_shows_what_the_first_tutorial_runs_and_prints() -> None:
    tutorial = DOCS / "tutorials" / "first-ten-minutes.md"
    run = [step.command for step in page_steps(tutorial.read_text(encoding="utf-8")) if isinstance(step, CommandStep)]
    (terminal,) = [block.text for block in blocks(DOCS / "index.md") if block.language == "console"]
    lines = re.sub(" +", " ", re.sub(r"\\\n +", "", terminal)).splitlines()
    assert [line for line in lines if line.startswith("$ ") and line.removeprefix("$ ") not in run] == []
    printed = re.sub(" +", " ", tutorial.read_text(encoding="utf-8"))
    assert [line for line in lines if not line.startswith(("$ ", "…")) and line not in printed] == []


def test_files_outside_docs_that_pages_link_to_are_staged_beside_them(staged: Path) -> None:
    assert site_path(ROOT / "CONTRIBUTING.md") == Path("project/CONTRIBUTING.md")
    assert site_path(ROOT / "examples" / "handlers" / "README.md") == Path("project/examples/handlers/index.md")
    assert (staged / "project" / "bench" / "results" / "reference.json").exists()
    listing = (staged / "project" / "deploy" / "prometheus" / "index.md").read_text(encoding="utf-8")
    assert "[prometheus.yml](prometheus.yml)" in listing
    assert (staged / "project" / "deploy" / "prometheus" / "prometheus.yml").exists()


def test_links_of_staged_pages_stay_within_the_site(staged: Path) -> None:
    text = (staged / "contributing" / "scale.md").read_text(encoding="utf-8")
    assert "](../project/bench/results/reference.json)" in text
    assert not [page for page in staged.rglob("*.md") if "](../../../../" in page.read_text(encoding="utf-8")]


def test_a_link_to_a_missing_file_is_an_error_that_names_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# A\n\n[missing](other.md)\n", encoding="utf-8")
    monkeypatch.setattr("tools.site.staging.ROOT", tmp_path)
    monkeypatch.setattr("tools.site.staging.DOCS", docs)
    monkeypatch.setattr("tools.site.staging._EXTRA_PAGES", ())
    with pytest.raises(FileNotFoundError, match=r"docs/index\.md links to other\.md, which does not exist"):
        stage(tmp_path / "out", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example.org/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example.org/a.css">',
        '<img src="http://example.org/a.png">',
        '<p style="background: url(https://example.org/a.png)">',
        "<style>@import 'https://example.org/a.css';</style>",
    ],
)
def test_a_page_that_loads_something_from_elsewhere_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.html").write_text(f"<html><body>{text}</body></html>", encoding="utf-8")
    (found,) = external_resources(tmp_path)
    assert found.startswith("a.html: ")


def test_links_to_other_sites_and_own_files_are_allowed(tmp_path: Path) -> None:
    page = '<a href="https://example.org">x</a><script src="../a.js"></script><img src="data:image/png;base64,AA">'
    (tmp_path / "a.html").write_text(page, encoding="utf-8")
    (tmp_path / "a.css").write_text("a { background: url(b.png) }", encoding="utf-8")
    assert list(external_resources(tmp_path)) == []


def test_a_style_that_loads_a_font_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@font-face { src: url("https://example.org/f.woff2") }', encoding="utf-8")
    assert list(external_resources(tmp_path)) == ["a.css: https://example.org/f.woff2"]
