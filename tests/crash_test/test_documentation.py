"""The pages about the crash test: their examples run, they name what there is, and the list of cases is current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn import crash_test
from forewarn.cli.crash_test import crash_test as command
from forewarn.crash_test import approval_demands, demands, program_demands
from forewarn.crash_test.baseline import load_baseline
from forewarn.crash_test.case import Demand, load_case_file
from forewarn.crash_test.cases import ALL_CASES
from forewarn.crash_test.claims import HandlerClaims, HandlerProfile, parse_claims
from forewarn.crash_test.grading import Grade
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.verdict import CaseOutcome
from tools.docs.crash_test_cases import crash_test_pages

ROOT = Path(__file__).parents[2]
NAMES = ("how-to/crash-test.md", "reference/crash-test.md", "explanation/crash-test.md")
PAGE = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in NAMES)
PYTEST_FILE, HANDLER, CASE_FILE = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BASELINE, CLAIMS = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with the files of the page."""
    for name, text in (("test_it.py", PYTEST_FILE), ("handler.py", HANDLER), ("my_cases.py", CASE_FILE)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "known.toml").write_text(BASELINE, encoding="utf-8")
    return tmp_path


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", *arguments]
    return subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.crash
def test_the_case_on_the_page_runs(project: Path) -> None:
    options = ("--profile", "observer", "--cases", "my_cases.py", "--only", "own-proxy-error")
    handler = ("--endpoint-env", "FOREWARN_ENDPOINT", "--", sys.executable, "handler.py")
    done = run(project, "forewarn", "crash-test", *options, *handler)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Grade A" in done.stdout


@pytest.mark.crash
def test_the_tests_on_the_page_pass(project: Path) -> None:
    done = run(project, "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider")
    assert "1 passed" in done.stdout, done.stdout


def test_the_files_on_the_page_can_be_read(project: Path) -> None:
    assert [case.id for case in load_case_file(project / "my_cases.py")] == ["own-proxy-error"]
    assert list(load_baseline(project / "known.toml", [case.id for case in ALL_CASES])) == ["transport-huge"]
    assert isinstance(parse_claims(CLAIMS, HandlerProfile.SPOT, source="the page"), HandlerClaims)


def test_the_page_names_every_outcome_grade_claim_and_method_of_a_stage() -> None:
    for word in (*CaseOutcome, *Grade, *HandlerProfile):
        assert re.search(rf"\b{re.escape(word)}\b", PAGE), word
    methods = [name for name in vars(Stage) if not name.startswith("_") and callable(getattr(Stage, name))]
    missing = [name for name in methods if f"`{name}`" not in PAGE]
    assert missing == ["free_disk"]


def test_the_page_names_only_options_that_there_are() -> None:
    parameters = [parameter for each in (command, *command.commands.values()) for parameter in each.params]
    known = {option for parameter in parameters for option in parameter.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - {"--fast"} <= known


def test_the_pages_of_cases_have_every_case_once() -> None:
    text = "\n".join(crash_test_pages().values())
    sections, variants = (
        re.findall(r"^## (.+)$", text, re.MULTILINE),
        re.findall(r"(?:^|· )also `([\w-]+)`", text, re.MULTILINE),
    )
    assert sorted(sections + variants) == sorted(case.id for case in ALL_CASES)


def test_every_demand_can_be_imported_from_one_place() -> None:
    modules = (approval_demands, demands, program_demands)
    found = {
        name
        for module in modules
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__annotations__", {}).get("return") == "Demand" and name[0] != "_"
    }
    assert len(found) > 25
    assert found <= set(crash_test.__all__)
    assert all(hasattr(crash_test, name) for name in crash_test.__all__)
    assert crash_test.Demand is Demand
