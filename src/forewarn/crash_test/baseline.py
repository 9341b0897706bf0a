"""The baseline of a crash test: failures that are known, so that CI reports only new ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from forewarn.base.tomlfile import parse_toml, read_text_file, toml_value
from forewarn.crash_test.result import CrashTestResult
from forewarn.crash_test.verdict import CaseOutcome
from forewarn.errors import Rejected

_PLACEHOLDER = "known: say why"  # the reason of a failure, until the user writes one


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineComparison:
    """Which failures of a crash test are new, compared with its baseline (the failures known before)."""

    new_failures: tuple[str, ...]  # failed, and not expected to
    expected: tuple[str, ...]  # failed as expected
    fixed: tuple[str, ...]  # expected to fail, and passed or slow: remove them from the baseline


def load_baseline(path: Path, known_cases: Collection[str]) -> dict[str, str]:
    """Read a baseline file and return the failures that are expected: case id → reason."""
    root = parse_toml(read_text_file(path, "the baseline", "check its path"), str(path))
    table = root.read_table("expected-failures")
    if table is None or len(root.raw) != 1:
        raise Rejected(f'{path}: a baseline has one table [expected-failures]: write CASE = "reason" lines below it')
    for case, reason in table.raw.items():
        if case not in known_cases:
            table.add_problem(case, f"there is no case {case!r}", "`forewarn crash-test list` shows all")
        elif not isinstance(reason, str) or not reason.strip():
            table.add_problem(case, f"{case} has no reason", "write why its failure is expected, in quotes")
    root.raise_problems(str(path))
    return dict(table.raw)


def compare_with_baseline(result: CrashTestResult, expected: Mapping[str, str]) -> BaselineComparison:
    """Return which failures of the result are new, which are expected, and which expected ones are gone."""
    failed = [case.id for case in result.cases if case.outcome is CaseOutcome.FAIL]
    passed = [case.id for case in result.cases if case.outcome in (CaseOutcome.PASS, CaseOutcome.SLOW)]
    return BaselineComparison(
        new_failures=tuple(case for case in failed if case not in expected),
        expected=tuple(case for case in failed if case in expected),
        fixed=tuple(case for case in passed if case in expected),
    )


def baseline_text(result: CrashTestResult, expected: Mapping[str, str]) -> str:
    """Return the text of a baseline file with every failure of the result, for `load_baseline`."""
    ran = {case.id for case in result.cases}
    failed = [case.id for case in result.cases if case.outcome is CaseOutcome.FAIL]
    listed = [*failed, *(case for case in expected if case not in ran)]
    return "[expected-failures]\n" + "".join(
        f"{case} = {toml_value(expected.get(case, _PLACEHOLDER))}\n" for case in listed
    )
