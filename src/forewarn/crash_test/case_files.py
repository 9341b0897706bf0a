"""Reads case files: Python files of users with cases of their own, in a list `CASES`."""

from __future__ import annotations

import runpy
from pathlib import Path

from forewarn.crash_test.case import Case
from forewarn.errors import Rejected


def load_case_file(path: Path) -> tuple[Case, ...]:
    """Run a case file, which is Python, in this process, and return the cases of its list `CASES`."""
    if path.is_dir():
        raise Rejected(f"the case file {str(path)!r} is a directory: name a Python file in it")
    try:
        names = runpy.run_path(str(path))
    except SyntaxError as error:
        raise Rejected(f"{path}:{error.lineno}: this is not Python ({error.msg}): correct that line") from error
    except SystemExit as error:
        raise Rejected(f"the case file {str(path)!r} exits when it is run: remove the call that exits") from error
    except OSError as error:
        raise Rejected(f"the case file {str(path)!r} cannot be read ({error.strerror}): check its path") from error
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise Rejected(f"the case file {str(path)!r} fails when it is run ({problem}): correct it") from error
    cases = names.get("CASES")
    if not isinstance(cases, list | tuple) or not all(isinstance(case, Case) for case in cases):
        raise Rejected(f"the case file {str(path)!r} has no list CASES of cases: add CASES = [Case(…), …]")
    return tuple(cases)
