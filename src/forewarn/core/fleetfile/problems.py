"""Problems of a fleet file, each with its line and a remedy, and the error that carries all of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from forewarn.errors import Rejected


class FleetFileProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One problem of a fleet file, or of applying it: its line, what is wrong, and what to do instead."""

    line: int  # 0: the problem is in the running fleet, not in a line of the file
    message: str  # a clause that says what is wrong
    remedy: str  # a clause that says what to write or do instead

    def sentence(self, source: str) -> str:
        """Return the problem in one line: `source:line: what: remedy`, where `source` is the file's name."""
        place = f"{source}:{self.line}: " if self.line else f"{source}: "
        return f"{place}{self.message}: {self.remedy}"


class InvalidFleetFile(Rejected):
    """The fleet file is not valid. `problems` has all its problems in the order of their lines."""

    def __init__(self, problems: Sequence[FleetFileProblem], *, source: str) -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__("\n".join(problem.sentence(source) for problem in self.problems))


class ProblemCollector:
    """Collects the problems of a fleet file while it is read, instead of raising; the same problem of a line once."""

    def __init__(self) -> None:
        self._problems: list[FleetFileProblem] = []
        self._reported: set[tuple[int, str]] = set()

    def add(self, line: int, what: str, remedy: str, *, rule: str = "") -> None:
        """Add a problem, unless the line has one of the same `rule` (without a rule: the same `what`) already.

        `line` counts from 1, 0 means none. `what` says what is wrong, `remedy` what to write instead, each as a clause.
        """
        key = (line, rule or what)
        if key not in self._reported:
            self._reported.add(key)
            self._problems.append(FleetFileProblem(line=line, message=what, remedy=remedy))

    @property
    def problems(self) -> tuple[FleetFileProblem, ...]:
        """All problems so far, in the order of their lines; those of one line in the order they were added."""
        return tuple(sorted(self._problems, key=lambda problem: problem.line))
