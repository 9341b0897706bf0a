"""Every section of docs/reference/contract is cited by a test, and every citation names an existing section."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parent
CONTRACT = TESTS.parent / "docs" / "reference" / "contract"
CONTRACT_PAGES = [
    CONTRACT / f"{name}.md"
    for name in ("index", "requests", "documents", "events", "scopes", "errors", "faults-and-time", "rollouts", "newer")
]
NOT_BUILT = "(not built yet)"

HEADING = re.compile(r"^#{2,3} (\d+(?:\.\d+)?)\.? (.+)$", re.MULTILINE)
CITATION = re.compile(r"(?<!RFC \d{4} )§(\d+(?:\.\d+)*)")

SAMPLE = """
# A contract
## 1. Greetings
### 1.1 Hello
### 1.2 Goodbye (not built yet)
## 2. Manners
As in 1.1, and some (not built yet).
## 3. Hats (not built yet)
"""


def contract_text() -> str:
    """All pages of the contract."""
    return "\n".join(path.read_text(encoding="utf-8") for path in CONTRACT_PAGES)


def sections(contract: str) -> dict[str, str]:
    """Number → title, in the order of the page."""
    return dict(HEADING.findall(contract))


def sections_to_prove(contract: str) -> set[str]:
    """The implemented sections, which a test must cite; of a chapter with parts, only the parts."""
    titles = sections(contract)
    chapters = {number.partition(".")[0] for number in titles if "." in number}
    return {number for number, title in titles.items() if NOT_BUILT not in title and number not in chapters}


def cited(text: str) -> set[str]:
    return set(CITATION.findall(text))


def citations() -> dict[str, set[str]]:
    """The sections that each test file and scenario cites, without this file's samples."""
    paths = (path for suffix in ("py", "txt") for path in TESTS.rglob(f"*.{suffix}"))
    return {
        path.relative_to(TESTS).as_posix(): cited(path.read_text(encoding="utf-8"))
        for path in sorted(paths)
        if path != Path(__file__)
    }


def in_order(numbers: set[str]) -> list[str]:
    return sorted(numbers, key=lambda number: [int(part) for part in number.split(".")])


def section_list(numbers: set[str], titles: Mapping[str, str]) -> str:
    return "\n".join(f"  §{number} {titles.get(number, '')}".rstrip() for number in in_order(numbers))


def test_every_implemented_section_is_cited_by_a_test() -> None:
    contract = contract_text()
    uncited = sections_to_prove(contract) - set().union(*citations().values())
    assert not uncited, (
        f"no test cites these sections of docs/reference/contract:\n{section_list(uncited, sections(contract))}\n"
        f'cite them where they are proved ("spec §..."), or mark their headings {NOT_BUILT}'
    )


def test_every_citation_names_an_existing_section() -> None:
    known = sections(contract_text()).keys()
    astray = {path: in_order(numbers - known) for path, numbers in citations().items() if numbers - known}
    assert not astray, f"docs/reference/contract has no such sections: {astray}"


def test_the_contract_has_fourteen_chapters_and_each_number_once_in_order() -> None:
    numbers = [number for number, _ in HEADING.findall(contract_text())]
    assert numbers == in_order(set(numbers))
    assert [number for number in numbers if "." not in number] == [str(n) for n in range(1, 15)]


def test_every_section_needs_a_test_unless_its_heading_excludes_it() -> None:
    assert list(sections(SAMPLE)) == ["1", "1.1", "1.2", "2", "3"]
    assert sections_to_prove(SAMPLE) == {"1.1", "2"}


def test_citations_are_found_anywhere_and_those_of_other_papers_are_ignored() -> None:
    assert cited('"""Spec §4.1, §4.2; (§12)."""  # RFC 9112 §2.2') == {"4.1", "4.2", "12"}
