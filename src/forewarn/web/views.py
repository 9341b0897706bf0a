"""The response structs of the API, which the portal's pages show too.

Instants are POSIX seconds in lab time; durations end in `_s`. Field names are JSON keys.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forewarn.core.fleet import AutoApproval
from forewarn.core.fleetfile.problems import FleetFileProblem
from forewarn.core.history import HistoryEntry
from forewarn.core.request import RolloutTally


class BaseView(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the response structs."""


class HostView(BaseView, frozen=True, kw_only=True):
    """A hypervisor host with its health and the names of its VMs."""

    name: str
    location: str
    zone: str
    health: str
    vms: tuple[str, ...]


class ScopeSummaryView(BaseView, frozen=True, kw_only=True):
    """A scope: whether Scheduled Events is enabled, its incarnation, its VMs and how many live events."""

    id: str
    title: str
    enabled: bool
    enabled_at: float | None
    epoch: int
    incarnation: int
    last_request_at: float | None
    vms: tuple[str, ...]
    update_domains: tuple[int, ...]
    events: int


class WaitView(BaseView, frozen=True, kw_only=True):
    """What a scheduled event waits for before it starts."""

    reason: str
    text: str
    until: float | None


class ActView(BaseView, frozen=True, kw_only=True):
    """The work of an event on one VM, and its outcome once it is known."""

    vm: str
    verb: str
    to_host: str
    ok: bool | None
    at: float | None
    note: str


class EventView(BaseView, frozen=True, kw_only=True):
    """An event with its times, VMs, acts, outcome and what it waits for."""

    id: str
    scope: str
    kind: str | None  # None if no document lists the event
    verb: str
    cause: str
    status: str
    source: str
    vms: tuple[str, ...]
    published_at: float
    not_before: float
    approved_at: float | None
    approved_by: str
    started_at: float | None
    over_at: float | None
    ending: str | None
    reason: str
    note: str
    listed: bool
    host: str
    update_domain: int
    request_id: str
    who: str
    description: str
    duration_s: int
    waits_for: WaitView | None
    acts: tuple[ActView, ...]
    given_at: float | None  # when a VM was first given it
    replaces: tuple[str, ...]  # ids of the events it replaced


class VmView(BaseView, frozen=True, kw_only=True):
    """A VM with its settings, its place, its last poll and the number of its live events."""

    name: str
    key: str
    resource_group: str
    subscription_id: str
    location: str
    zone: str
    scope: str
    title_of_scope: str
    computer_name: str
    size: str
    os_type: str
    availability_set: str
    scale_set: str
    placement_group: str
    cloud_service: str
    update_domain: int
    fault_domain: int
    priority: str
    eviction_policy: str
    terminate_notice_min: int
    auto_approve: AutoApprovalView
    tags: dict[str, str]
    address: str
    url: str | None
    host: str
    power: str
    last_polled_at: float | None
    polled_version: str | None
    polls: int
    pending: int


class AutoApprovalView(BaseView, frozen=True, kw_only=True):
    """Which user-requested operations of a VM are approved automatically."""

    restart: bool
    redeploy: bool

    @classmethod
    def from_approval(cls, approval: AutoApproval) -> AutoApprovalView:
        """The view of a VM's setting."""
        return cls(restart=approval.restart, redeploy=approval.redeploy)


class VmSupervisorView(BaseView, frozen=True, kw_only=True):
    """The supervisor process of a namespace VM."""

    vm: str
    pid: int
    state: str
    boot_id: str
    program: tuple[str, ...] | None


class VmSupervisorsView(BaseView, frozen=True, kw_only=True):
    """The connected supervisors, one per namespace VM."""

    keepers: tuple[VmSupervisorView, ...]


class VmWithEvents(VmView, frozen=True, kw_only=True):
    """A VM with its live events and its supervisor, if it has one."""

    events: tuple[EventView, ...]
    keeper: VmSupervisorView | None


class FleetView(BaseView, frozen=True, kw_only=True):
    """Hosts, scopes and VMs that the caller may see."""

    hosts: tuple[HostView, ...]
    scopes: tuple[ScopeSummaryView, ...]
    vms: tuple[VmView, ...]


class FieldChangeView(BaseView, frozen=True, kw_only=True):
    """One changed field of a host or VM."""

    field: str
    old: Any
    new: Any


class ObjectChangeView(BaseView, frozen=True, kw_only=True):
    """A host or VM that a fleet file changes, with its changed fields."""

    name: str
    fields: tuple[FieldChangeView, ...]


class FleetDifferenceView(BaseView, frozen=True, kw_only=True):
    """What a fleet file would change, by name; `problems` say what keeps it from being applied."""

    source: str
    summary: str
    is_empty: bool
    hosts_added: tuple[str, ...]
    hosts_changed: tuple[ObjectChangeView, ...]
    hosts_removed: tuple[str, ...]
    added: tuple[str, ...]
    resurrected: tuple[str, ...]
    changed: tuple[ObjectChangeView, ...]
    removed: tuple[str, ...]
    stay_deleted: tuple[str, ...]
    unchanged: int
    problems: tuple[FleetFileProblem, ...]
    lines: tuple[str, ...]


class FleetCheckView(BaseView, frozen=True, kw_only=True):
    """The result of checking a fleet file."""

    difference: FleetDifferenceView


class FleetApplyView(FleetCheckView, frozen=True, kw_only=True):
    """The result of applying a fleet file; `applied` is false in a dry run or without changes."""

    applied: bool


class RequestView(BaseView, frozen=True, kw_only=True):
    """A maintenance request: the operation, its targets, who made it and when."""

    id: str
    ask: str
    who: str
    at: float
    targets: tuple[str, ...]


class EventListView(BaseView, frozen=True, kw_only=True):
    """A list of events."""

    events: tuple[EventView, ...]


class ReceiptView(EventListView, frozen=True, kw_only=True):
    """An accepted request with the events it created and those it replaced."""

    request: RequestView
    replaced: tuple[str, ...]  # ids of the pending events that its events replaced


class RequestStatusView(ReceiptView, frozen=True, kw_only=True):
    """A request with its state, its events and what they wait for."""

    state: str
    waits_for: tuple[str, ...]


class RolloutView(BaseView, frozen=True, kw_only=True):
    """A host update rollout: its targets, progress, tally and the update domains that come next."""

    id: str
    impact: str
    hosts: tuple[str, ...]
    scope: str
    progress: str
    why: str  # the reason of its progress, such as why it was aborted
    closed: bool
    who: str
    at: float
    notice_s: float
    max_failures: int
    tally: RolloutTally
    next_update_domains: tuple[int, ...]


class RolloutWithEvents(RolloutView, frozen=True, kw_only=True):
    """A rollout with all its events."""

    events: tuple[EventView, ...]


class RolloutsView(BaseView, frozen=True, kw_only=True):
    """Open and recent rollouts, oldest first."""

    rollouts: tuple[RolloutView, ...]


class EventsView(EventListView, frozen=True, kw_only=True):
    """Events, and the sequence number of the history when they were read."""

    seq: int


class HistoryView(BaseView, frozen=True, kw_only=True):
    """History entries, oldest first, and the sequence number to continue after."""

    entries: tuple[HistoryEntryView, ...]
    seq: int


class HistoryEntryView(BaseView, frozen=True, kw_only=True):
    """One entry of the history: what happened, when, who caused it and what it is about."""

    seq: int
    at: float
    what: str
    text: str
    who: str
    scope_id: str
    event_id: str
    request_id: str
    vm: str
    host: str

    @classmethod
    def from_entry(cls, entry: HistoryEntry) -> HistoryEntryView:
        """The view of a stored entry."""
        return cls(**{name: getattr(entry, name) for name in cls.__struct_fields__})


class HistoryPruneView(BaseView, frozen=True, kw_only=True):
    """How many history entries were deleted."""

    pruned: int


class FaultView(BaseView, frozen=True, kw_only=True):
    """An active fault: its kind, target, parameters, what is left of it and what it affected."""

    id: str
    kind: str
    strikes: str
    target: str
    vm: str  # empty for a fault of a scope or of the whole fleet
    scope: str
    who: str
    set_at: float
    parameters: dict[str, float]
    count: int | None
    left: int | None  # of its count
    left_s: float | None  # real time for faults on requests, lab time for faults on events
    touched: int
    touched_at: float | None
    events: tuple[str, ...]
    seen: str


class StormFaultView(BaseView, frozen=True, kw_only=True):
    """One scheduled fault of a storm, and whether it was set already."""

    after_s: float
    kind: str
    vm: str
    count: int | None
    for_s: float | None
    parameters: dict[str, float]
    is_set: bool


class StormView(BaseView, frozen=True, kw_only=True):
    """An active fault storm and its schedule."""

    id: str
    seed: int
    who: str
    set_at: float
    for_s: float
    gusts: tuple[StormFaultView, ...]


class FaultParameterView(BaseView, frozen=True, kw_only=True):
    """The default and bounds of a fault's parameter."""

    default: float
    least: float
    most: float


class FaultKindView(BaseView, frozen=True, kw_only=True):
    """A kind of fault: what it affects, what VMs see of it, its parameters and its longest duration."""

    kind: str
    strikes: str
    seen: str
    parameters: dict[str, FaultParameterView]
    longest_s: float | None


class FaultsView(BaseView, frozen=True, kw_only=True):
    """Active faults and storms, and all kinds of faults."""

    faults: tuple[FaultView, ...]
    storms: tuple[StormView, ...]
    kinds: tuple[FaultKindView, ...]


class ClearedFaultsView(BaseView, frozen=True, kw_only=True):
    """The faults and storms that a call ended."""

    cleared: tuple[FaultView, ...]
    storms: tuple[StormView, ...]


class ClockView(BaseView, frozen=True, kw_only=True):
    """Lab time, its speed, and whether this service is a lab."""

    now: float
    speed: float
    lab: bool


class BackupView(BaseView, frozen=True, kw_only=True):
    """A written backup file and its size."""

    path: str
    bytes: int


class HealthCheckView(BaseView, frozen=True, kw_only=True):
    """The result of one health check, with what to do if it failed."""

    name: str
    ok: bool
    text: str
    remedy: str


class HealthReportView(BaseView, frozen=True, kw_only=True):
    """The results of all health checks."""

    checks: tuple[HealthCheckView, ...]


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    """A replay of a recording in one scope: its position, speed and end."""

    id: str
    vm: str
    scope: str
    who: str
    at: float
    speed: float
    loops: int
    loop: int  # the current loop, from 1
    step: int  # steps of the current loop that were shown
    steps: int
    shows: str  # a description of the document that the scope is shown; empty: its own
    begun_at: float  # start of the current loop
    ends_at: float  # planned end of the last loop
    ended: str | None
    ended_at: float | None
    reason: str
