"""The baseline of a crash test: failures that are known, so that CI reports only new ones."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from forewarn.base.tomlfile import error_line
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
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"the baseline {str(path)!r} cannot be read ({error}): check its path") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = error_line(str(error), text)
        raise Rejected(f"{path}:{line}: this is not TOML ({error}): correct that line") from error
    table = document.get("expected-failures")
    if not isinstance(table, dict) or len(document) != 1:
        raise Rejected(f'{path}: a baseline has one table [expected-failures]: write CASE = "reason" lines below it')
    for case, reason in table.items():
        _check_line(path, case, reason, known_cases)
    return {case: str(reason) for case, reason in table.items()}


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
    # JSON's strings are TOML's basic strings, but for DEL.
    lines = (f"{case} = {json.dumps(expected.get(case, _PLACEHOLDER), ensure_ascii=False)}\n" for case in listed)
    return "[expected-failures]\n" + "".join(lines).replace("\x7f", "\\u007f")


def _check_line(path: Path, case: str, reason: object, known_cases: Collection[str]) -> None:
    if case not in known_cases:
        raise Rejected(f"{path}: there is no case {case!r}: `forewarn crash-test list` shows all")
    if not isinstance(reason, str) or not reason.strip():
        raise Rejected(f"{path}: {case} has no reason: write why its failure is expected, in quotes")
