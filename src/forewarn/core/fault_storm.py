"""Plans a fault storm: a schedule of faults that is determined by its seed, the VMs and the duration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultKind, StormFault

_INTERVAL_S = (5, 30)  # from one gust to the next
_DURATION_S = (5, 30)
_EVENT_FAULT_DURATION_S = 300.0  # how long a fault of events waits for one
_REQUEST_COUNT = (1, 8)
_NEEDS_NEIGHBOUR = FaultKind.NEIGHBOUR_ONLY
_PARAMETER_RANGES: dict[FaultKind, tuple[str, int, int]] = {  # milder than they can be: a storm is to be lived through
    FaultKind.LATE_FIRST_ANSWER: ("delay_s", 2, 20),
    FaultKind.THROTTLED: ("retry_after_s", 0, 5),
    FaultKind.SLOW_BODY: ("take_s", 1, 10),
    FaultKind.STALE: ("age_s", 10, 60),
    FaultKind.SHORT_NOTICE: ("notice_s", 5, 60),
    FaultKind.SEVERAL_AT_ONCE: ("events", 2, 4),
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StormTarget:
    """A VM that a storm may hit."""

    vm: str  # its key
    has_neighbour: bool


class _SeededRandom:
    """Numbers that look like chance and follow from the seed, on every machine and in every release."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def between(self, least: int, most: int) -> int:
        self._drawn += 1
        digest = hashlib.sha256(f"{self._seed}:{self._drawn}".encode()).digest()
        return least + int.from_bytes(digest[:8], "big") % (most - least + 1)

    def one_of(self, things: Sequence[T]) -> T:
        return things[self.between(0, len(things) - 1)]


def plan_storm(seed: int, exposed: Sequence[StormTarget], for_s: float) -> tuple[StormFault, ...]:
    return tuple(_storm_faults(_SeededRandom(seed), sorted(exposed, key=lambda each: each.vm), for_s))


def _storm_faults(dice: _SeededRandom, exposed: Sequence[StormTarget], for_s: float) -> Iterator[StormFault]:
    after_s = 0.0
    while after_s < for_s and exposed:
        hit = dice.one_of(exposed)
        kinds = [kind for kind in FaultKind if hit.has_neighbour or kind is not _NEEDS_NEIGHBOUR]
        yield _storm_fault(dice, dice.one_of(kinds), hit, after_s)
        after_s += dice.between(*_INTERVAL_S)


def _storm_fault(dice: _SeededRandom, kind: FaultKind, hit: StormTarget, after_s: float) -> StormFault:
    sphere = FAULT_DEFINITIONS[kind].category
    count = dice.between(*_REQUEST_COUNT) if sphere is FaultCategory.TRANSPORT else 1
    lasts_s = float(dice.between(*_DURATION_S)) if sphere is FaultCategory.TRANSPORT else _EVENT_FAULT_DURATION_S
    at_once = sphere is FaultCategory.AT_ONCE
    return StormFault(
        after_s=after_s,
        kind=kind,
        vm=hit.vm,
        count=None if at_once else count,
        for_s=None if at_once else lasts_s,
        parameters=_random_parameters(dice, kind),
    )


def _random_parameters(dice: _SeededRandom, kind: FaultKind) -> dict[str, float]:
    if kind not in _PARAMETER_RANGES:
        return {}
    name, least, most = _PARAMETER_RANGES[kind]
    return {name: float(dice.between(least, most))}
