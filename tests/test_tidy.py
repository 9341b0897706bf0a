"""Rules of style that no linter knows: unique names, plain words, files and functions of a readable size."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "forewarn"
MIGRATIONS = SOURCE / "store" / "migrations" / "versions"  # steps of the schema stay as they were released
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 80
MIN_ESSAY_LINES = 30

# Words of the first version that an engineer would not search for. Only in identifiers: prose may need them.
METAPHORS = frozenset(
    {
        *("befalls", "breath", "courier", "crew", "desk", "doorbell", "doorstep", "errand", "gust", "hall", "house"),
        *("keeper", "letter", "lobby", "mishap", "mouth", "outlook", "porter", "prospect", "room", "seat", "seating"),
        *("shelf", "sighting", "slip", "storey", "stranger", "vigil", "visitor"),
    }
)
# The wire and stored data keep names that were chosen before: these identifiers mirror them.
KEPT_NAMES = frozenset({"slip"})
PHRASES = re.compile(
    r"\b(whoever|whomever|so many|so much of|that there is|what stands|is told of|are told of|comes? to be|came to be|"
    r"falls? due by itself|in whose|as it were)\b",
    re.IGNORECASE,
)
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def python_files(*folders: str) -> list[Path]:
    return [
        path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if MIGRATIONS not in path.parents
    ]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def identifiers(path: Path) -> Iterator[tuple[str, int]]:
    """Every name that a file defines: classes, functions, parameters, variables, attributes."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case _:
                pass


def words(identifier: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().split("_"))


def test_public_class_names_are_unique() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files("src"):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(place(path, node.lineno))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_identifiers_are_words_of_the_field() -> None:
    bad = [
        f"{place(path, line)} {name}"
        for path in python_files("src", "bench", "tools")
        for name, line in identifiers(path)
        if name.strip("_") not in KEPT_NAMES and words(name) & METAPHORS
    ]
    assert bad == []


@pytest.mark.parametrize("folder", ["src", "tests", "bench", "tools"])
def test_comments_and_strings_avoid_phrases_that_hide_their_subject(folder: str) -> None:
    bad = [
        f"{place(path, token.start[0])} {match[0]!r}"
        for path in python_files(folder)
        if path != Path(__file__) and PHRASES.search(path.read_text(encoding="utf-8"))
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        if token.type in (tokenize.COMMENT, tokenize.STRING)
        for match in PHRASES.finditer(token.string)
    ]
    assert bad == []


def test_pages_avoid_phrases_that_hide_their_subject() -> None:
    bad = [
        f"{place(page, number)} {match[0]!r}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for match in PHRASES.finditer(line)
    ]
    assert bad == []


def test_no_file_is_too_long_to_read() -> None:
    counts = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files("src", "tests", "bench")
    }
    assert [f"{path.relative_to(ROOT)} {lines}" for path, lines in counts.items() if lines > MAX_FILE_LINES] == []


def test_no_function_is_too_long_to_hold_in_mind() -> None:
    bad = [
        f"{place(path, node.lineno)} {node.name}"
        for path in python_files("src", "tests", "bench", "tools")
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert bad == []


def test_every_module_says_what_it_is() -> None:
    assert [place(path, 1) for path in python_files("src") if not ast.get_docstring(tree_of(path))] == []


def test_the_files_that_contributors_must_read_begin_with_an_essay() -> None:
    """A file that is merged or split keeps the argument that it is right."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+/\w+\.py)`", text[text.index("begins with an essay") :].partition("\n\n")[0])
    before_imports = {
        name: (SOURCE / name).read_text(encoding="utf-8").partition("\nfrom __future__")[0] for name in named
    }
    assert len(named) == 8
    assert [name for name, text in before_imports.items() if text.count("\n") < MIN_ESSAY_LINES] == []


def test_every_source_file_is_used_by_the_product() -> None:
    """A module that only tests import belongs in tests/support."""
    imported: set[str] = set()
    for path in python_files("src", "bench", "tools"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
                imported.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    # Modules that are started with -m, loaded by name, or offered to other people's tests.
    entry_points = {"__main__", "__init__", "env"}
    loaded_by_name = {
        "forewarn.metadata.workers.worker",
        "forewarn.pytest_plugin",
        "forewarn.crash_test.namespace_check",
    }
    public = ("forewarn.conformance", "forewarn.cli", "forewarn.lab", "forewarn.scheduled_events")
    bad = []
    for path in python_files("src"):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        known = path.stem in entry_points or module in loaded_by_name or module.startswith(public)
        if not known and module not in imported:
            bad.append(module)
    assert bad == []


def test_test_names_have_a_subject() -> None:
    """A test's name is a complete sentence about the product."""
    bad = [
        f"{place(path, node.lineno)} {node.name}"
        for path in python_files("tests")
        for node in functions(path)
        if re.match(r"test_(so|and|but|then|nor|or|which|that|also|not(?!_before)|it|they)_", node.name)
    ]
    assert bad == []
