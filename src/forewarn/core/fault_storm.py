"""Plans a fault storm: a schedule of faults that is determined by its seed, the VMs and the duration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultKind, StormFault

_INTERVAL_S = (5, 30)  # from one fault to the next
_DURATION_S = (5, 30)
_EVENT_FAULT_DURATION_S = 300.0  # how long a fault on events waits for an event
_REQUEST_COUNT = (1, 8)
_NEEDS_NEIGHBOUR = FaultKind.NEIGHBOUR_ONLY
# Kinds that were added later: with them, a seed would give another storm than in earlier releases.
_NOT_IN_STORMS = (FaultKind.UNSIGNED_401, FaultKind.SEVERAL_UPDATE_DOMAINS)
_STORM_KINDS = tuple(kind for kind in FaultKind if kind not in _NOT_IN_STORMS)
_PARAMETER_RANGES: dict[FaultKind, tuple[str, int, int]] = {  # milder than allowed: a handler should survive a storm
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
    """A VM that faults of a storm may be set on, and whether its scope has other VMs (`has_neighbour`)."""

    vm: str  # its key
    has_neighbour: bool  # without one, it gets no fault that needs a neighbour


class _SeededRandom:
    """Pseudorandom numbers that are the same for a seed on every machine and in every release."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def between(self, least: int, most: int) -> int:
        self._drawn += 1
        digest = hashlib.sha256(f"{self._seed}:{self._drawn}".encode()).digest()
        return least + int.from_bytes(digest[:8], "big") % (most - least + 1)

    def one_of(self, things: Sequence[T]) -> T:
        return things[self.between(0, len(things) - 1)]


def plan_storm(seed: int, targets: Sequence[StormTarget], for_s: float) -> tuple[StormFault, ...]:
    """Return the faults of a storm that begin within `for_s` seconds, by time, each on one target."""
    # Equal arguments give equal storms, in every release, so kinds that were added later are never in a storm.
    return tuple(_storm_faults(_SeededRandom(seed), sorted(targets, key=lambda each: each.vm), for_s))


def _storm_faults(random: _SeededRandom, targets: Sequence[StormTarget], for_s: float) -> Iterator[StormFault]:
    after_s = 0.0
    while after_s < for_s and targets:
        target = random.one_of(targets)
        kinds = [kind for kind in _STORM_KINDS if target.has_neighbour or kind is not _NEEDS_NEIGHBOUR]
        yield _storm_fault(random, random.one_of(kinds), target, after_s)
        after_s += random.between(*_INTERVAL_S)


def _storm_fault(random: _SeededRandom, kind: FaultKind, target: StormTarget, after_s: float) -> StormFault:
    category = FAULT_DEFINITIONS[kind].category
    count = random.between(*_REQUEST_COUNT) if category is FaultCategory.TRANSPORT else 1
    duration_s = float(random.between(*_DURATION_S)) if category is FaultCategory.TRANSPORT else _EVENT_FAULT_DURATION_S
    at_once = category is FaultCategory.AT_ONCE
    return StormFault(
        after_s=after_s,
        kind=kind,
        vm=target.vm,
        count=None if at_once else count,
        duration_s=None if at_once else duration_s,
        parameters=_random_parameters(random, kind),
    )


def _random_parameters(random: _SeededRandom, kind: FaultKind) -> dict[str, float]:
    if kind not in _PARAMETER_RANGES:
        return {}
    name, least, most = _PARAMETER_RANGES[kind]
    return {name: float(random.between(least, most))}
