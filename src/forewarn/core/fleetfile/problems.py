"""Problems of a fleet file, each with its line and a remedy, and the error that carries all of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from forewarn.errors import Rejected


class FleetFileProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    line: int  # 0: about the running fleet, no line of the file is to blame
    what: str
    remedy: str

    def sentence(self, source: str) -> str:
        place = f"{source}:{self.line}: " if self.line else f"{source}: "
        return f"{place}{self.what}: {self.remedy}"


class InvalidFleetFile(Rejected):
    """A fleet file that describes no fleet; it carries all its problems, in the order of their lines."""

    def __init__(self, problems: Sequence[FleetFileProblem], *, source: str) -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__("\n".join(problem.sentence(source) for problem in self.problems))


class ProblemCollector:
    """Collects problems while a file is read. Many VMs alike make the same mistake at the same line: told once."""

    def __init__(self) -> None:
        self._problems: list[FleetFileProblem] = []
        self._reported: set[tuple[int, str]] = set()

    def add(self, line: int, what: str, remedy: str, *, rule: str = "") -> None:
        """With a `rule`, only the first problem of that rule at that line counts."""
        told = (line, rule or what)
        if told not in self._reported:
            self._reported.add(told)
            self._problems.append(FleetFileProblem(line=line, what=what, remedy=remedy))

    @property
    def problems(self) -> tuple[FleetFileProblem, ...]:
        return tuple(sorted(self._problems, key=lambda problem: problem.line))
