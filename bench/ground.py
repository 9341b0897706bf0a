"""What every row is given: how thorough to be, where to write, and whom to tell how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.figure import Figure

T = TypeVar("T")


def _silent(what: str, done: int, total: int) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    directory: Path  # on the disk that is measured
    is_quick: bool = False
    tell: Callable[[str, int, int], None] = _silent
    seen: dict[str, Figure] = field(default_factory=dict)  # what earlier rows found

    @property
    def runs(self) -> int:
        return 1 if self.is_quick else 5

    @property
    def run_s(self) -> float:
        return 1.0 if self.is_quick else 4.0

    def sized(self, whole: int) -> int:
        """So many, or a twentieth in a smoke run, which proves nothing but that the row works."""
        return max(1, whole // 20) if self.is_quick else whole

    def track(self, what: str, items: Iterable[T]) -> Iterator[T]:
        """Each in turn, and how far that is."""
        every = list(items)
        for number, item in enumerate(every):
            self.tell(what, number, len(every))
            yield item
        self.tell(what, len(every), len(every))


Measure = Callable[[Ground], tuple[Figure, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One or several figures that are measured together."""

    name: str
    measure: Measure
    figures: Sequence[str]

    def measured(self, ground: Ground) -> tuple[Figure, ...]:
        """AssertionError if a figure is missing, which nobody would notice."""
        found = self.measure(ground)
        names = [figure.name for figure in found]
        assert names == [*self.figures], f"row {self.name} found {names}, not {[*self.figures]}"
        return found
