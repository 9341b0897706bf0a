"""What a watcher knows, what it sees, and whether that is newer than what it knows. Pure.

A document may be stale for up to a minute (spec §11), and a scope that is enabled again starts over at 1 (spec §4.2).
Where the ETag carries an epoch (spec §4.3) the two are told apart at once; elsewhere, in time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from forewarn.client.event import Event

STALE_S = 70.0  # documents may be up to a minute stale (spec §11); what lasts longer is no stale one
# No number has more digits that this service counts: beyond that it is somebody else's tag.
_TAG = re.compile(r'(W/)?"(?P<epoch>[0-9]{1,20})-[0-9]{1,20}(?P<scope>-[0-9a-f]{8})?"')
_LOW, _FAR = 3, 10  # "falls back to a small number": to at most this, by more than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An event that is listed, as it was last seen, and the boot during which it was last seen to be still to come."""

    event: Event
    boot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a watcher knows: the document that it followed last, and what is over."""

    epoch: str = ""  # the ETag's part of it; "" where the server gives none
    incarnation: int = -1
    seen: tuple[Seen, ...] = ()
    is_exact: bool = True  # False: more is seen than the incarnation counts
    over: tuple[str, ...] = ()  # keys of the latest events that are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A document, and the circumstances under which it came."""

    incarnation: int
    events: tuple[Event, ...]
    epoch: str = ""
    date: float | None = None  # the service's
    boot: str = ""
    name: str | None = None  # this VM's, where it is known
    behind_s: float = 0.0  # for how long documents have been older than the one known
    shows_all: bool = True  # the api-version hides no kind


class Verdict(Enum):
    CURRENT = auto()
    RESET = auto()  # another epoch: the number says nothing about the one before
    STALE = auto()
    DOUBTFUL = auto()  # stale or reset, it cannot be told yet: news is told, but nothing is taken back


def verdict_on(known: Known, sight: Sight) -> Verdict:
    both = bool(known.epoch and sight.epoch)
    if both and known.epoch != sight.epoch:
        earlier = _number(sight.epoch) < _number(known.epoch)
        return Verdict.DOUBTFUL if earlier and sight.behind_s < STALE_S else Verdict.RESET
    if sight.incarnation >= known.incarnation:
        return Verdict.CURRENT
    if sight.behind_s >= STALE_S:
        return Verdict.RESET
    if both:
        return Verdict.STALE
    is_low = sight.incarnation <= _LOW and known.incarnation - sight.incarnation > _FAR
    return Verdict.RESET if is_low else Verdict.DOUBTFUL


def is_behind(known: Known, sight: Sight) -> bool:
    """Whether this document is older than the one known, as far as can be seen; if for long, it is another epoch's."""
    return verdict_on(known, sight) in (Verdict.STALE, Verdict.DOUBTFUL)


def epoch_of(tag: str) -> str:
    """The epoch that an ETag of this service carries, and the mark of its scope; "" of any other (spec §4.3)."""
    found = _TAG.fullmatch(tag)
    return found["epoch"] + (found["scope"] or "") if found else ""


def _number(epoch: str) -> int:
    digits = epoch.partition("-")[0]
    return int(digits) if digits.isdigit() else 0
