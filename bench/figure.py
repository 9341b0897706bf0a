"""A measured figure, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.target import BY_NAME, Target, Verdict


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the table. Fields are the JSON of results."""

    name: str  # of its target
    value: float | None = None  # None: not measured, and `note` says why
    is_absent: bool = False  # this machine lacks what it measures with
    note: str = ""
    samples: dict[str, tuple[float, ...]] = {}  # the measurements that it was computed from
    load_average: float = 0.0  # when its row had finished

    @property
    def target(self) -> Target:
        """What the figure must reach."""
        return BY_NAME[self.name]

    @property
    def verdict(self) -> Verdict:
        """Whether the figure reaches its target."""
        if self.value is None:
            return Verdict.ABSENT if self.is_absent else Verdict.FAILED
        return self.target.verdict(self.value)

    @property
    def text(self) -> str:
        """The value with its unit, for the table."""
        if self.value is None:
            return "–"
        return f"{format_value(self.value)}{f' {self.target.unit}' if self.target.unit else ''}"


def absent(name: str, note: str) -> Figure:
    """Return a figure that this machine cannot measure, and why."""
    return Figure(name=name, is_absent=True, note=note)


def failed(names: Sequence[str], error: BaseException) -> tuple[Figure, ...]:
    """Return the figures of a row that failed; the first has the first and the last line of the error."""
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    reason = lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"
    return tuple(Figure(name=name, note=reason[:300] if name == names[0] else "") for name in names)


def format_value(value: float) -> str:
    """Format with three digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
