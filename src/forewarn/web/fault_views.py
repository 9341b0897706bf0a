"""The response structs of the API for faults and storms of faults."""

from __future__ import annotations

from forewarn.base.times import Timestamp
from forewarn.web.views import BaseView


class FaultView(BaseView, frozen=True, kw_only=True):
    """A fault, active or just ended: its kind, target, parameters, what is left and what it affected.

    `category` is what the kind affects: requests, events or at once. `symptom` is what VMs notice. `applied` is how
    many requests or events it affected (of a reset, scopes); `events` are the ids of those events, among the 1,000
    newest, oldest first.
    """

    id: str  # such as f1
    kind: str  # a value of FaultKind
    category: str  # what the kind affects: requests, events or at once
    target: str  # in words
    vm: str  # a name; empty for a fault of a scope or of the whole fleet
    scope: str  # an id; empty for a fault of the whole fleet
    set_by: str  # the name of who set it
    set_at: Timestamp
    parameters: dict[str, float]  # by name, with the defaults of the kind
    count: int | None  # it ends after this many requests or events; None: no limit
    remaining: int | None  # of its count; None: no limit
    remaining_s: float | None  # real time for faults on requests, lab time for those on events; None: until cleared
    applied: int  # how many requests or events it affected so far; of a reset, scopes
    last_applied_at: Timestamp | None  # of the last request; None: none so far, or a fault on events
    events: tuple[str, ...]  # ids of the events it affected, among the 1,000 newest, oldest first
    symptom: str  # what VMs notice of it, in words


class StormFaultView(BaseView, frozen=True, kw_only=True):
    """One scheduled fault of a fault storm; `after_s` is lab time since the storm began."""

    after_s: float  # lab time since the storm began
    kind: str  # a value of FaultKind
    vm: str  # its name
    count: int | None  # of requests or events that it affects; None: it happens at once
    duration_s: float | None  # real time for faults on requests, lab time for those on events; None: it happens at once
    parameters: dict[str, float]  # by name; others have the defaults of the kind
    is_set: bool  # it was set already, or skipped, as when the VM was removed


class StormView(BaseView, frozen=True, kw_only=True):
    """A fault storm (a random schedule of faults), active or just ended; `duration_s`: its length in lab time."""

    id: str  # such as s1
    seed: int  # the same seed, VMs and duration give the same schedule
    set_by: str  # the name of who set it
    set_at: Timestamp
    duration_s: float  # its duration, in seconds of lab time
    faults: tuple[StormFaultView, ...]  # its scheduled faults, in order


class FaultParameterView(BaseView, frozen=True, kw_only=True):
    """A parameter of a kind of fault: its default and its bounds, which are allowed themselves."""

    default: float  # seconds if the name of the parameter ends with `_s`, else a count
    minimum: float
    maximum: float


class FaultKindView(BaseView, frozen=True, kw_only=True):
    """A kind of fault: what it affects (`category`), what VMs notice (`symptom`), and its parameters.

    `max_duration_s` is its longest duration, and the default; with None it lasts until it is cleared.
    """

    kind: str  # a value of FaultKind
    category: str  # requests, events or at once
    symptom: str  # what VMs notice of it, in words
    parameters: dict[str, FaultParameterView]  # by name
    max_duration_s: float | None  # real time for faults on requests, lab time for those on events


class FaultsView(BaseView, frozen=True, kw_only=True):
    """The active faults, the active storms, and all kinds of faults that can be set."""

    faults: tuple[FaultView, ...]  # oldest first, also those that a storm has set
    storms: tuple[StormView, ...]  # random schedules of faults that are not all set yet; oldest first
    kinds: tuple[FaultKindView, ...]  # all that can be set


class ClearedFaultsView(BaseView, frozen=True, kw_only=True):
    """The faults and storms that a call ended; empty if none matched."""

    cleared: tuple[FaultView, ...]  # as they were, oldest first
    storms: tuple[StormView, ...]  # as they were, oldest first
