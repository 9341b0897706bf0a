"""A storm: a schedule of faults that follows from a seed alone. Same seed, same VMs: same faults, same offsets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forewarn.core.fault import FAULTS, FaultKind, Gust, Sphere

_BETWEEN_S = (5, 30)  # from one gust to the next
_LASTS_S = (5, 30)
_FOR_AN_EVENT_S = 300.0  # how long a fault of events waits for one
_REQUESTS = (1, 8)
_NEEDS_NEIGHBOUR = FaultKind.NEIGHBOUR_ONLY
_PARAMETERS: dict[FaultKind, tuple[str, int, int]] = {  # milder than they can be: a storm is to be lived through
    FaultKind.LATE_FIRST_ANSWER: ("delay_s", 2, 20),
    FaultKind.THROTTLED: ("retry_after_s", 0, 5),
    FaultKind.SLOW_BODY: ("take_s", 1, 10),
    FaultKind.STALE: ("age_s", 10, 60),
    FaultKind.SHORT_NOTICE: ("notice_s", 5, 60),
    FaultKind.SEVERAL_AT_ONCE: ("events", 2, 4),
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A VM that a storm may hit."""

    vm: str  # its key
    has_neighbour: bool


class _Dice:
    """Numbers that look like chance and follow from the seed, on every machine and in every release."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._thrown = 0

    def between(self, least: int, most: int) -> int:
        self._thrown += 1
        digest = hashlib.sha256(f"{self._seed}:{self._thrown}".encode()).digest()
        return least + int.from_bytes(digest[:8], "big") % (most - least + 1)

    def one_of(self, things: Sequence[T]) -> T:
        return things[self.between(0, len(things) - 1)]


def gusts_of(seed: int, exposed: Sequence[Exposed], for_s: float) -> tuple[Gust, ...]:
    return tuple(_gusts(_Dice(seed), sorted(exposed, key=lambda each: each.vm), for_s))


def _gusts(dice: _Dice, exposed: Sequence[Exposed], for_s: float) -> Iterator[Gust]:
    after_s = 0.0
    while after_s < for_s and exposed:
        hit = dice.one_of(exposed)
        kinds = [kind for kind in FaultKind if hit.has_neighbour or kind is not _NEEDS_NEIGHBOUR]
        yield _gust(dice, dice.one_of(kinds), hit, after_s)
        after_s += dice.between(*_BETWEEN_S)


def _gust(dice: _Dice, kind: FaultKind, hit: Exposed, after_s: float) -> Gust:
    sphere = FAULTS[kind].sphere
    count = dice.between(*_REQUESTS) if sphere is Sphere.TRANSPORT else 1
    lasts_s = float(dice.between(*_LASTS_S)) if sphere is Sphere.TRANSPORT else _FOR_AN_EVENT_S
    at_once = sphere is Sphere.AT_ONCE
    return Gust(
        after_s=after_s,
        kind=kind,
        vm=hit.vm,
        count=None if at_once else count,
        for_s=None if at_once else lasts_s,
        parameters=_parameters(dice, kind),
    )


def _parameters(dice: _Dice, kind: FaultKind) -> dict[str, float]:
    if kind not in _PARAMETERS:
        return {}
    name, least, most = _PARAMETERS[kind]
    return {name: float(dice.between(least, most))}
