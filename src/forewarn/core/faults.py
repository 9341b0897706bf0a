"""Faults that can be injected (spec §11): kinds and parameters, active faults, fault storms.

Faults on requests spoil HTTP answers and expire in real time; faults on events change events and expire in lab time
(spec §12); faults that happen at once have no duration. The structs are stored as JSON.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import msgspec

from forewarn.base.duration import duration_text
from forewarn.base.times import LabSeconds, LabTime
from forewarn.errors import Rejected, Remedy

T = TypeVar("T")


class FaultKind(StrEnum):
    """The faults that can be injected; FAULT_DEFINITIONS describes each. Users type the values."""

    LATE_FIRST_ANSWER = "late-first-answer"  # answers wait until some time after the VM's first request
    EMPTY_BODY = "empty-body"  # 200 without a document
    GONE = "gone"  # 410
    THROTTLED = "throttled"  # 429
    INTERNAL_ERROR = "internal-error"  # 500
    RESET = "reset"  # of the connection, instead of an answer
    SLOW_BODY = "slow-body"  # the document arrives in small pieces
    STALE = "stale"  # an older document
    UNKNOWN_VERSION_404 = "unknown-version-404"  # 404 instead of 400 for an unknown api-version
    SHORT_NOTICE = "short-notice"  # an event's NotBefore is earlier than it should be
    NO_NOTICE = "no-notice"  # an event is Started when it first appears
    WITHDRAWN_AFTER_APPROVAL = "withdrawn-after-approval"  # an approved event disappears instead of starting
    SEVERAL_AT_ONCE = "several-at-once"  # several Freezes appear in one document
    NEIGHBOUR_ONLY = "neighbour-only"  # a Freeze of another VM of the scope appears
    INCARNATION_RESET = "incarnation-reset"  # the incarnation is 1 again, in a new epoch
    UNSIGNED_401 = "unsigned-401"  # 401 to requests without a signature, as where metadata security is enforced
    SEVERAL_UPDATE_DOMAINS = "several-update-domains"  # a Freeze of VMs of several update domains appears


class FaultCategory(StrEnum):
    """What a fault affects: requests of VMs, events, or a scope once."""

    TRANSPORT = "requests"  # spoils HTTP answers; real time
    EVENTS = "events"  # changes events; lab time
    AT_ONCE = "at once"  # happens once, when it is set; no duration


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultParameter:
    """The default and the allowed range of one parameter; seconds if its name ends with `_s`, else a count."""

    default: float
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDefinition:
    """The definition of one fault kind: category, symptom, parameters, and longest (and default) duration."""

    category: FaultCategory
    symptom: str  # what a client observes
    parameters: Mapping[str, FaultParameter] = field(default_factory=dict)  # by name; empty: it has none
    max_duration_s: float | None = None  # also the default, in the time of its category; None: no limit


_ON_REQUESTS, _ON_EVENTS, _AT_ONCE = FaultCategory.TRANSPORT, FaultCategory.EVENTS, FaultCategory.AT_ONCE

FAULT_DEFINITIONS: dict[FaultKind, FaultDefinition] = {
    FaultKind.LATE_FIRST_ANSWER: FaultDefinition(
        category=_ON_REQUESTS, symptom="no answer until `delay` after the VM's first request; then all answers at once",
        parameters={"delay_s": FaultParameter(default=120, minimum=0, maximum=120)},
    ),
    FaultKind.EMPTY_BODY: FaultDefinition(category=_ON_REQUESTS, symptom="200 with Content-Length 0 to a poll"),
    FaultKind.GONE: FaultDefinition(category=_ON_REQUESTS, symptom="410", max_duration_s=70),
    FaultKind.THROTTLED: FaultDefinition(
        category=_ON_REQUESTS, symptom="429 as text, with Retry-After if `retry-after` is given",
        parameters={"retry_after_s": FaultParameter(default=0, minimum=0, maximum=3600)},
    ),
    FaultKind.INTERNAL_ERROR: FaultDefinition(category=_ON_REQUESTS, symptom="500"),
    FaultKind.RESET: FaultDefinition(
        category=_ON_REQUESTS, symptom="the connection is reset (RST) instead of answered"
    ),
    FaultKind.SLOW_BODY: FaultDefinition(
        category=_ON_REQUESTS, symptom="the document arrives in small pieces, over `take`",
        parameters={"take_s": FaultParameter(default=10, minimum=0, maximum=120)},
    ),
    FaultKind.STALE: FaultDefinition(
        category=_ON_REQUESTS, symptom="the document as it was `age` ago",
        parameters={"age_s": FaultParameter(default=60, minimum=0, maximum=60)},
    ),
    FaultKind.UNKNOWN_VERSION_404: FaultDefinition(
        category=_ON_REQUESTS, symptom="404 instead of 400 for an api-version that does not exist"
    ),
    FaultKind.UNSIGNED_401: FaultDefinition(
        category=_ON_REQUESTS,
        symptom="401 to a request without the header `x-ms-azure-host-authorization`, as where Azure enforces its "
        "metadata security protocol",
    ),
    FaultKind.SHORT_NOTICE: FaultDefinition(
        category=_ON_EVENTS, symptom="an event whose NotBefore is only `notice` ahead",
        parameters={"notice_s": FaultParameter(default=5, minimum=0, maximum=3600)},
    ),
    FaultKind.NO_NOTICE: FaultDefinition(category=_ON_EVENTS, symptom="an event that is Started when it first appears"),
    FaultKind.WITHDRAWN_AFTER_APPROVAL: FaultDefinition(
        category=_ON_EVENTS, symptom="an event that disappears after its approval, without being Started"
    ),
    FaultKind.SEVERAL_AT_ONCE: FaultDefinition(
        category=_AT_ONCE,
        symptom="`events` Freezes appear in one document, and the incarnation grows by `events`",
        parameters={"events": FaultParameter(default=3, minimum=2, maximum=20)},
    ),
    FaultKind.NEIGHBOUR_ONLY: FaultDefinition(
        category=_AT_ONCE, symptom="a Freeze whose Resources name only another VM of the scope"
    ),
    FaultKind.INCARNATION_RESET: FaultDefinition(
        category=_AT_ONCE, symptom="DocumentIncarnation 1 again, with another ETag, as after a day without requests"
    ),
    FaultKind.SEVERAL_UPDATE_DOMAINS: FaultDefinition(
        category=_AT_ONCE,
        symptom="one Freeze whose Resources name VMs of up to `domains` update domains, one of each",
        parameters={"domains": FaultParameter(default=2, minimum=2, maximum=20)},
    ),
}  # fmt: skip


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One injected fault: on a VM (it then names its scope too), on a scope, or on everything."""

    id: str  # `f1`
    kind: FaultKind
    set_by: str  # the name of who set it
    set_at: LabTime
    name: str  # its target in words
    vm: str = ""  # the key of the VM it is on; "": on a scope or on everything
    vm_name: str = ""  # the name of that VM
    scope_id: str = ""  # "": on everything
    count: int | None = None  # it affects at most this many requests or events; None: no limit
    until: float | None = None  # real time for requests, lab time for events; None: until it is cleared
    parameters: dict[str, float] = {}  # those that were given; `parameter` adds the defaults
    applied: int = 0  # affected requests, events or (a reset) scopes; of events, as `FaultRegistry.active` counts them
    applied_by_vm: dict[str, int] = {}  # VM key → its affected requests, of the first 100 VMs; only of faults on these
    last_applied_at: LabTime | None = None  # of the last affected request; None: none yet

    @property
    def category(self) -> FaultCategory:
        """The category of the fault's kind: whether it affects requests or events, or happens at once."""
        return FAULT_DEFINITIONS[self.kind].category

    @property
    def title(self) -> str:
        """The fault's id and kind in words, such as `fault f1 (gone)`."""
        return f"fault {self.id} ({self.kind})"

    @property
    def remaining(self) -> int | None:
        """How many more requests or events the fault may affect: `count` less `applied`, at least 0."""
        return None if self.count is None else max(0, self.count - self.applied)

    @property
    def without_counts(self) -> Fault:
        """A copy of the fault with all `applied…` fields reset, as it was when it was set."""
        return msgspec.structs.replace(self, applied=0, applied_by_vm={}, last_applied_at=None)

    def parameter(self, name: str) -> float:
        """Return the value of a parameter of the fault, or its default if it was not given."""
        return self.parameters.get(name, FAULT_DEFINITIONS[self.kind].parameters[name].default)

    def covers_request(self, *, scope_id: str, vm: str) -> bool:
        """Return whether the fault's target includes a request of the VM with the key `vm` in this scope."""
        if self.vm:
            return self.vm == vm
        return not self.scope_id or self.scope_id == scope_id

    def covers_event(self, *, scope_id: str, names: tuple[str, ...]) -> bool:
        """Return whether the fault's target includes an event of this scope that lists VMs with these names."""
        if self.scope_id and self.scope_id != scope_id:
            return False
        return not self.vm or self.vm_name.casefold() in map(str.casefold, names)

    def is_over(self, now: float) -> bool:
        """Return whether the count or the time of the fault is used up, so that it affects nothing more.

        `now` is real time for faults on requests, lab time for faults on events.
        """
        return self.remaining == 0 or (self.until is not None and now >= self.until)


# `Fault.title` with the fault's target, as in notes and reasons of events.
_FAULT_IN_TEXT = re.compile(r"fault f\d+ \([a-z0-9-]+\) of [^:;]*")


def hide_faults(text: str) -> str:
    """Return the text with `a fault` in place of each fault it names, for people who may not list faults."""
    return _FAULT_IN_TEXT.sub("a fault", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFault:
    """An active fault on events, with the events that count towards its limit."""

    fault: Fault
    used_by: frozenset[str] = frozenset()  # ids of the events that count towards its limit; empty without a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHits:
    """How many requests of one VM (by its key) a fault has spoiled since the last report of such hits."""

    fault_id: str  # such as `f1`
    vm: str  # its key
    count: int  # of requests
    at: LabTime  # of the last request


def parse_fault_kind(name: str) -> FaultKind:
    """Return the fault kind with this name, ignoring letter case and blanks around it."""
    try:
        return FaultKind(name.strip().lower())
    except ValueError:
        close = difflib.get_close_matches(name, list(FaultKind), n=1)
        if close:
            raise Rejected(f"there is no fault {name!r}: did you mean {str(close[0])!r}?") from None
        raise Rejected(f"there is no fault {name!r}", Remedy.LIST_FAULT_KINDS) from None


def check_parameters(kind: FaultKind, given: Mapping[str, float]) -> dict[str, float]:
    """Return a copy of the given parameters of a fault, by name, without adding defaults."""
    known = FAULT_DEFINITIONS[kind].parameters
    for name, value in given.items():
        if name not in known:
            has = f"it has {', '.join(map(repr, known))}" if known else "it has none"
            raise Rejected(f"fault {kind} has no parameter {name!r}: {has}")
        range_ = known[name]
        if not range_.minimum <= value <= range_.maximum:
            unit = " s" if name.endswith("_s") else ""
            raise Rejected(
                f"parameter {name!r} of fault {kind} is {value:g}{unit}: give {range_.minimum:g} to "
                f"{range_.maximum:g}{unit}"
            )
        if not name.endswith("_s") and value != int(value):
            raise Rejected(f"parameter {name!r} of fault {kind} is {value:g}: give a whole number")
    return dict(given)


def fault_duration_s(kind: FaultKind, count: int | None, for_s: float | None) -> float | None:
    """Return how long a fault lasts in seconds: `for_s`, else the longest of its kind; None: no limit."""
    definition = FAULT_DEFINITIONS[kind]
    if definition.category is FaultCategory.AT_ONCE and (count is not None or for_s is not None):
        raise Rejected(f"fault {kind} happens once, at once: leave count and duration out")
    if count is not None and count < 1:
        raise Rejected(f"count {count} of fault {kind} is too small: give 1 or more")
    if for_s is not None and for_s <= 0:
        raise Rejected(f"duration {for_s:g} s of fault {kind} is too short: give more than 0 s")
    longest_s = definition.max_duration_s
    if longest_s is None:
        return for_s
    if for_s is not None and for_s > longest_s:
        raise Rejected(
            f"fault {kind} lasts {duration_text(longest_s)} at most, not {duration_text(for_s)}: give a shorter one"
        )
    return longest_s if for_s is None else for_s


class StormFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of a storm: what is set, on which VM, and how long after the storm's beginning."""

    after_s: LabSeconds  # from the storm's beginning until it is set
    kind: FaultKind
    vm: str  # the key of the VM
    count: int | None = None  # of requests or events; None: it happens at once
    duration_s: float | None = None  # real time for requests, lab time for events; None: it happens at once
    parameters: dict[str, float] = {}  # others of its kind have their defaults


class FaultStorm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault storm in progress. Clearing it leaves the faults that it has set."""

    id: str  # `s1`
    seed: int  # the number that its schedule follows from
    set_by: str  # the name of who set it
    set_at: LabTime  # when it began
    duration_s: LabSeconds  # how long new faults begin
    faults: tuple[StormFault, ...]  # its faults, in order
    gone: int = 0  # how many of them were set already, or skipped, as when the VM was removed

    @property
    def next_at(self) -> float | None:
        """The lab time, maybe past, at which the next fault of the storm is due; None after the last."""
        return self.set_at + self.faults[self.gone].after_s if self.gone < len(self.faults) else None


class ActiveFaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All active faults and storms, as they are stored; some may be over but not yet removed."""

    last_number: int = 0  # of the newest id, of faults and storms; a number is never used twice
    faults: tuple[Fault, ...] = ()  # oldest first
    storms: tuple[FaultStorm, ...] = ()  # oldest first

    def fault(self, fault_id: str) -> Fault | None:
        """Return the fault with this id, also one that is over but not yet removed, or None."""
        return next((fault for fault in self.faults if fault.id == fault_id), None)


# Plans a fault storm: a schedule of faults that is determined by its seed, the VMs and the duration.

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
