"""A measured figure, and a row's answer when there is none."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.target import BY_NAME, Target, Verdict


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # of its target
    value: float | None = None  # None: there is none, and `note` says why
    is_absent: bool = False  # what it would measure is not built
    note: str = ""
    samples: dict[str, tuple[float, ...]] = {}  # what it was computed from
    load_average: float = 0.0  # when its row was done

    @property
    def target(self) -> Target:
        return BY_NAME[self.name]

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return Verdict.ABSENT if self.is_absent else Verdict.FAILED
        return self.target.verdict(self.value)

    @property
    def words(self) -> str:
        if self.value is None:
            return "–"
        return f"{shown(self.value)}{f' {self.target.unit}' if self.target.unit else ''}"


def absent(name: str, note: str) -> Figure:
    return Figure(name=name, is_absent=True, note=note)


def failed(names: Sequence[str], error: BaseException) -> tuple[Figure, ...]:
    """The first of them says why: the error's first line, and the last, where a child's own words end."""
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    why = lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"
    return tuple(Figure(name=name, note=why[:300] if name == names[0] else "") for name in names)


def shown(value: float) -> str:
    """With as many digits as a reading of this kind is worth."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
