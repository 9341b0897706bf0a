"""The cases of the crash test, one module for each area.

`ALL_CASES` has them all, and `find_case` finds one by its id. `scripts` has what their scripts share. A case may import
the stage, the answers and the demands, and nothing that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from forewarn.crash_test.case import Case
from forewarn.crash_test.cases import (
    acting,
    afterwards,
    approving,
    cost,
    notice,
    reading,
    survival,
    transport,
    whom,
)
from forewarn.errors import Rejected

ALL_CASES: tuple[Case, ...] = (
    *notice.CASES,
    *whom.CASES,
    *reading.CASES,
    *transport.CASES,
    *acting.CASES,
    *approving.CASES,
    *afterwards.CASES,
    *survival.CASES,
    *cost.CASES,
)


def find_case(case_id: str, more: Sequence[Case] = ()) -> Case:
    """Return the case with exactly this id, of `more` (from case files of the user) or of `ALL_CASES`."""
    by_id = {case.id: case for case in (*ALL_CASES, *more)}
    if case_id in by_id:
        return by_id[case_id]
    close = get_close_matches(case_id, by_id, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`forewarn crash-test list` shows all cases"
    raise Rejected(f"there is no case {case_id!r}: {hint}")
