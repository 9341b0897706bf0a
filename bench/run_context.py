"""What each row gets: the size of the run, a directory, and a callback for its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.figure import Figure

T = TypeVar("T")


def _ignore_progress(description: str, done: int, total: int) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The settings of one benchmark run, and the figures measured so far."""

    directory: Path  # on the disk that is measured
    is_quick: bool = False
    on_progress: Callable[[str, int, int], None] = _ignore_progress  # description, steps done, steps in total
    figures: dict[str, Figure] = field(default_factory=dict)  # of earlier rows, by name

    @property
    def runs(self) -> int:
        """How often a measurement is repeated."""
        return 1 if self.is_quick else 5

    @property
    def run_s(self) -> float:
        """How long one measurement takes."""
        return 1.0 if self.is_quick else 4.0

    def scaled(self, size: int) -> int:
        """Return the size, or a twentieth of it in a quick run, which only shows that the row works."""
        return max(1, size // 20) if self.is_quick else size

    def track(self, description: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items and report the progress."""
        every = list(items)
        for number, item in enumerate(every):
            self.on_progress(description, number, len(every))
            yield item
        self.on_progress(description, len(every), len(every))


Measure = Callable[[RunContext], tuple[Figure, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One or several figures that are measured together."""

    name: str
    measure: Measure
    figures: Sequence[str]  # names

    def run(self, context: RunContext) -> tuple[Figure, ...]:
        """Measure the row. AssertionError if it does not return exactly its figures."""
        found = self.measure(context)
        names = [figure.name for figure in found]
        assert names == [*self.figures], f"row {self.name} found {names}, not {[*self.figures]}"
        return found
