"""Faults that can be injected (spec §11): kinds and parameters, active faults, fault storms.

Faults on requests spoil HTTP answers and expire in real time; faults on events change events and expire in lab time
(spec §12); faults that happen at once have no duration. The structs are stored as JSON.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from forewarn.errors import Rejected, Remedy


class FaultKind(StrEnum):
    LATE_FIRST_ANSWER = "late-first-answer"
    EMPTY_BODY = "empty-body"
    GONE = "gone"
    THROTTLED = "throttled"
    INTERNAL_ERROR = "internal-error"
    RESET = "reset"
    SLOW_BODY = "slow-body"
    STALE = "stale"
    UNKNOWN_VERSION_404 = "unknown-version-404"
    SHORT_NOTICE = "short-notice"
    NO_NOTICE = "no-notice"
    WITHDRAWN_AFTER_APPROVAL = "withdrawn-after-approval"
    SEVERAL_AT_ONCE = "several-at-once"
    NEIGHBOUR_ONLY = "neighbour-only"
    INCARNATION_RESET = "incarnation-reset"


class FaultCategory(StrEnum):
    """Where a fault strikes, and so whose time it lives in."""

    TRANSPORT = "requests"
    EVENTS = "events"
    AT_ONCE = "at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultParameter:
    default: float
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDefinition:
    """What one kind of fault is."""

    category: FaultCategory
    symptom: str  # how a client sees it
    parameters: Mapping[str, FaultParameter] = field(default_factory=dict)
    max_duration_s: float | None = None  # it lasts this long at most, and unless less is asked for


_ON_REQUESTS, _ON_EVENTS, _AT_ONCE = FaultCategory.TRANSPORT, FaultCategory.EVENTS, FaultCategory.AT_ONCE

FAULT_DEFINITIONS: dict[FaultKind, FaultDefinition] = {
    FaultKind.LATE_FIRST_ANSWER: FaultDefinition(
        category=_ON_REQUESTS, symptom="no answer until `delay` after the VM's first request; then all of them",
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
        category=_ON_REQUESTS, symptom="the document comes in drips, over `take`",
        parameters={"take_s": FaultParameter(default=10, minimum=0, maximum=120)},
    ),
    FaultKind.STALE: FaultDefinition(
        category=_ON_REQUESTS, symptom="the document as it was `age` ago",
        parameters={"age_s": FaultParameter(default=60, minimum=0, maximum=60)},
    ),
    FaultKind.UNKNOWN_VERSION_404: FaultDefinition(
        category=_ON_REQUESTS, symptom="404 instead of 400 for an api-version that does not exist"
    ),
    FaultKind.SHORT_NOTICE: FaultDefinition(
        category=_ON_EVENTS, symptom="an event whose NotBefore is only `notice` ahead",
        parameters={"notice_s": FaultParameter(default=5, minimum=0, maximum=3600)},
    ),
    FaultKind.NO_NOTICE: FaultDefinition(category=_ON_EVENTS, symptom="an event that is Started when it first appears"),
    FaultKind.WITHDRAWN_AFTER_APPROVAL: FaultDefinition(
        category=_ON_EVENTS, symptom="an event that is gone after its approval, and was never Started"
    ),
    FaultKind.SEVERAL_AT_ONCE: FaultDefinition(
        category=_AT_ONCE,
        symptom="as many Freezes as `events` says in one document, the incarnation higher by as many",
        parameters={"events": FaultParameter(default=3, minimum=2, maximum=20)},
    ),
    FaultKind.NEIGHBOUR_ONLY: FaultDefinition(
        category=_AT_ONCE, symptom="a Freeze whose Resources name another VM of the scope only"
    ),
    FaultKind.INCARNATION_RESET: FaultDefinition(
        category=_AT_ONCE, symptom="DocumentIncarnation 1 again, with another ETag, as after a day without requests"
    ),
}  # fmt: skip


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault that is on: for a VM, for a scope, or, with neither, for everything."""

    id: str
    kind: FaultKind
    who: str
    set_at: float  # lab time
    name: str  # whom it touches, as people call them
    vm: str = ""  # a key
    vm_name: str = ""
    scope_id: str = ""
    count: int | None = None  # this many requests or events; None: no limit
    until: float | None = None  # real time for requests, lab time for events; None: until it is cleared
    parameters: dict[str, float] = {}
    touched: int = 0  # requests or events so far
    touched_by_vm: dict[str, int] = {}  # key → requests of it
    touched_at: float | None = None  # lab time of the last request

    @property
    def category(self) -> FaultCategory:
        return FAULT_DEFINITIONS[self.kind].category

    @property
    def title(self) -> str:
        return f"fault {self.id} ({self.kind})"

    @property
    def remaining(self) -> int | None:
        return None if self.count is None else max(0, self.count - self.touched)

    @property
    def without_counts(self) -> Fault:
        """As it was when it was set."""
        return msgspec.structs.replace(self, touched=0, touched_by_vm={}, touched_at=None)

    def parameter(self, name: str) -> float:
        return self.parameters.get(name, FAULT_DEFINITIONS[self.kind].parameters[name].default)

    def covers_request(self, *, scope_id: str, vm: str) -> bool:
        """Whether a request of this VM is meant."""
        if self.vm:
            return self.vm == vm
        return not self.scope_id or self.scope_id == scope_id

    def covers_event(self, *, scope_id: str, names: tuple[str, ...]) -> bool:
        if self.scope_id and self.scope_id != scope_id:
            return False
        return not self.vm or self.vm_name.casefold() in map(str.casefold, names)

    def is_over(self, now: float) -> bool:
        """`now` in the time that this fault lives in."""
        return self.remaining == 0 or (self.until is not None and now >= self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHits:
    """Requests of a VM that a fault spoiled since they were last told of."""

    fault_id: str
    vm: str
    count: int
    at: float  # lab time of the last


def parse_fault_kind(name: str) -> FaultKind:
    try:
        return FaultKind(name.strip().lower())
    except ValueError:
        close = difflib.get_close_matches(name, list(FaultKind), n=1)
        if close:
            raise Rejected(f"there is no fault {name!r}: did you mean {str(close[0])!r}?") from None
        raise Rejected(f"there is no fault {name!r}", Remedy.LIST_FAULT_KINDS) from None


def check_parameters(kind: FaultKind, given: Mapping[str, float]) -> dict[str, float]:
    """The parameters, if this kind has them and they are in range."""
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
        if name == "events" and value != int(value):
            raise Rejected(f"parameter {name!r} of fault {kind} is {value:g}: give a whole number")
    return dict(given)


def fault_duration_s(kind: FaultKind, count: int | None, for_s: float | None) -> float | None:
    """How long a fault lasts; None: until it is cleared."""
    row = FAULT_DEFINITIONS[kind]
    if row.category is FaultCategory.AT_ONCE and (count is not None or for_s is not None):
        raise Rejected(f"fault {kind} happens once, at once: leave count and duration out")
    if count is not None and count < 1:
        raise Rejected(f"count {count} of fault {kind} is too small: give 1 or more")
    if for_s is not None and for_s <= 0:
        raise Rejected(f"duration {for_s:g} s of fault {kind} is too short: give more than 0 s")
    if row.max_duration_s is None:
        return for_s
    if for_s is not None and for_s > row.max_duration_s:
        raise Rejected(
            f"fault {kind} lasts {row.max_duration_s:g} s at most, not {for_s:g} s: give {row.max_duration_s:g} s"
        )
    return row.max_duration_s if for_s is None else for_s


class StormFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of a storm, at its offset from the storm's beginning."""

    after_s: float  # lab time
    kind: FaultKind
    vm: str  # a key
    count: int | None = None
    for_s: float | None = None
    parameters: dict[str, float] = {}


class FaultStorm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    seed: int
    who: str
    set_at: float  # lab time
    for_s: float
    gusts: tuple[StormFault, ...]  # in order
    gone: int = 0  # how many of them have been

    @property
    def next_at(self) -> float | None:
        return self.set_at + self.gusts[self.gone].after_s if self.gone < len(self.gusts) else None


class ActiveFaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All faults and storms that are on, as they are stored; numbers are never given twice."""

    last_number: int = 0
    faults: tuple[Fault, ...] = ()
    storms: tuple[FaultStorm, ...] = ()

    def fault(self, fault_id: str) -> Fault | None:
        return next((fault for fault in self.faults if fault.id == fault_id), None)
