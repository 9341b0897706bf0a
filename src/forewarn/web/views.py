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
    """Base of the response structs; its subclasses are encoded as JSON objects."""


class HostView(BaseView, frozen=True, kw_only=True):
    """A host with its health (healthy, degraded or failed) and the names of its visible VMs."""

    name: str
    location: str
    zone: str
    health: str
    vms: tuple[str, ...]


class ScopeSummaryView(BaseView, frozen=True, kw_only=True):
    """A scope: whether Scheduled Events is enabled, its epoch and incarnation, its present VMs.

    `events` is the number of its live events; `last_request_at` is when it was last polled or enabled.
    """

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
    """What a scheduled event waits for before it starts: a code, a sentence, and until when at the latest."""

    reason: str
    text: str
    until: float | None  # None: another event or VM decides


class ActView(BaseView, frozen=True, kw_only=True):
    """The work of an event on one VM; `ok` and `at` are None until its outcome is known."""

    vm: str
    verb: str
    to_host: str
    ok: bool | None
    at: float | None
    note: str


class EventView(BaseView, frozen=True, kw_only=True):
    """An event with its times, VMs, acts, outcome and what it waits for.

    Times are None until they happen; `not_before` is the planned start.
    """

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
    ending: str | None  # how it ended; None while it is live
    reason: str  # why it failed or was withdrawn
    note: str  # why it has no or less notice than usual
    listed: bool  # false: performed at once, and no document shows it
    host: str
    update_domain: int
    request_id: str
    who: str
    description: str
    duration_s: int  # of the interruption, as documents show it; -1: not known
    waits_for: WaitView | None
    acts: tuple[ActView, ...]
    given_at: float | None  # when a VM was first given it
    replaces: tuple[str, ...]  # ids of the events it replaced


class VmView(BaseView, frozen=True, kw_only=True):
    """A VM with its settings, its place and its last poll; `pending` is the number of its live events.

    Texts are empty where a VM has no such value.
    """

    name: str
    key: str
    resource_group: str
    subscription_id: str
    location: str
    zone: str
    scope: str
    title_of_scope: str  # such as `availability set web`
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
    url: str | None  # where the VM reads its events in a lab; None on a real network
    host: str
    power: str
    last_polled_at: float | None  # lab time
    silent_s: float | None  # real time since its last poll, or since the end of a long poll; None: it never polled
    polled_version: str | None  # the api-version of its last poll
    polls: int  # how often it has polled
    pending: int  # its live events


class AutoApprovalView(BaseView, frozen=True, kw_only=True):
    """Which operations that a user requests for a VM are approved automatically."""

    restart: bool
    redeploy: bool

    @classmethod
    def from_approval(cls, approval: AutoApproval) -> AutoApprovalView:
        """The view of a VM's setting."""
        return cls(restart=approval.restart, redeploy=approval.redeploy)


class VmSupervisorView(BaseView, frozen=True, kw_only=True):
    """The supervisor process of a namespace VM; `program` is the VM's command line, None if it has none."""

    vm: str
    pid: int
    state: str
    boot_id: str
    program: tuple[str, ...] | None


class VmSupervisorsView(BaseView, frozen=True, kw_only=True):
    """The connected supervisors, one per namespace VM."""

    keepers: tuple[VmSupervisorView, ...]


class VmWithEvents(VmView, frozen=True, kw_only=True):
    """A VM with its live events and, if it is a running namespace VM, its supervisor."""

    events: tuple[EventView, ...]
    keeper: VmSupervisorView | None


class FleetView(BaseView, frozen=True, kw_only=True):
    """Hosts, VMs and the VMs' scopes, as far as the caller may see them."""

    hosts: tuple[HostView, ...]
    scopes: tuple[ScopeSummaryView, ...]
    vms: tuple[VmView, ...]


class FieldChangeView(BaseView, frozen=True, kw_only=True):
    """One changed field of a host or VM, with its old and new value."""

    field: str
    old: Any
    new: Any


class ObjectChangeView(BaseView, frozen=True, kw_only=True):
    """A host or VM that a fleet file changes, with its changed fields."""

    name: str
    fields: tuple[FieldChangeView, ...]


class FleetDifferenceView(BaseView, frozen=True, kw_only=True):
    """What a fleet file changes, by names of hosts and VMs; `lines` say it in words.

    `problems` say what keeps it from being applied. `resurrected` VMs were deleted before and are added again;
    `stay_deleted` VMs are in the file but stay deleted.
    """

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
    """What a fleet file would change; nothing was changed."""

    difference: FleetDifferenceView


class FleetApplyView(FleetCheckView, frozen=True, kw_only=True):
    """What a fleet file changes; `applied` is false in a dry run or if it changes nothing."""

    applied: bool


class RequestView(BaseView, frozen=True, kw_only=True):
    """A maintenance request: the operation (`ask`), the names of its targets, who made it and when."""

    id: str
    ask: str
    who: str
    at: float
    targets: tuple[str, ...]


class EventListView(BaseView, frozen=True, kw_only=True):
    """A list of events."""

    events: tuple[EventView, ...]


class EventsInScopesView(EventListView, frozen=True, kw_only=True):
    """Events with their scopes, each once: all VMs of a scope are shown its events."""

    scopes: tuple[ScopeSummaryView, ...]


class ReceiptView(EventsInScopesView, frozen=True, kw_only=True):
    """An accepted request with the events it has published so far, and those that they replaced."""

    request: RequestView
    replaced: tuple[str, ...]  # ids of the pending events that its events replaced
    replaced_events: tuple[EventView, ...]  # these events


class RequestStatusView(EventListView, frozen=True, kw_only=True):
    """A request with its state, its events and sentences about what it waits for.

    The state is in progress, succeeded, failed or canceled.
    """

    request: RequestView
    replaced: tuple[str, ...]  # ids of the pending events that its events replaced
    state: str
    waits_for: tuple[str, ...]  # while it is in progress
    skipped: tuple[str, ...]  # when it is over: why parts of it did not become events, in sentences


class RolloutView(BaseView, frozen=True, kw_only=True):
    """A host update rollout: its targets, progress, tally and the update domains that come next.

    It covers `hosts` or one `scope`; the other is empty. `max_failures` is 0 if failures never stop it. `state` is that
    of any request: in progress, succeeded, failed or canceled.
    """

    id: str
    impact: str
    hosts: tuple[str, ...]
    scope: str
    progress: str
    state: str
    why: str  # the reason of its progress, such as why it was aborted
    closed: bool
    who: str
    at: float
    notice_s: float
    max_failures: int
    tally: RolloutTally
    next_update_domains: tuple[int, ...]


class RolloutWithEvents(RolloutView, frozen=True, kw_only=True):
    """A rollout with all its events, oldest first."""

    events: tuple[EventView, ...]


class RolloutsView(BaseView, frozen=True, kw_only=True):
    """Open and recent rollouts, oldest first."""

    rollouts: tuple[RolloutView, ...]


class EventsView(EventListView, frozen=True, kw_only=True):
    """Events, oldest first, and the sequence number of the history from just before they were read."""

    seq: int


class HistoryView(BaseView, frozen=True, kw_only=True):
    """History entries, oldest first, and the sequence number to give as `after` for the next ones."""

    entries: tuple[HistoryEntryView, ...]
    seq: int


class HistoryEntryView(BaseView, frozen=True, kw_only=True):
    """One history entry: what happened, when, who caused it; ids and names are empty if it has none."""

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
    """How many history entries were deleted; events deleted with them are not counted."""

    pruned: int


class FaultView(BaseView, frozen=True, kw_only=True):
    """A fault, active or just ended: its kind, target, parameters, what is left and what it affected.

    `strikes` is what the kind affects: requests, events or at once. `seen` says what VMs notice of it. `touched` is how
    many requests or events it affected; `events` are ids of those events.
    """

    id: str
    kind: str
    strikes: str
    target: str
    vm: str  # empty for a fault of a scope or of the whole fleet
    scope: str  # empty for a fault of the whole fleet
    who: str
    set_at: float
    parameters: dict[str, float]
    count: int | None  # None: no limit
    left: int | None  # of its count
    left_s: float | None  # real time for faults on requests, lab time for faults on events
    touched: int
    touched_at: float | None
    events: tuple[str, ...]
    seen: str


class StormFaultView(BaseView, frozen=True, kw_only=True):
    """One scheduled fault of a storm: `after_s` is lab time since the storm began; `is_set` if it was set."""

    after_s: float
    kind: str
    vm: str
    count: int | None
    for_s: float | None
    parameters: dict[str, float]
    is_set: bool


class StormView(BaseView, frozen=True, kw_only=True):
    """A fault storm, active or just ended, and its schedule; `for_s` is its duration in lab time."""

    id: str
    seed: int
    who: str
    set_at: float
    for_s: float
    gusts: tuple[StormFaultView, ...]


class FaultParameterView(BaseView, frozen=True, kw_only=True):
    """The default and the bounds of a parameter of a kind of fault."""

    default: float
    least: float
    most: float


class FaultKindView(BaseView, frozen=True, kw_only=True):
    """A kind of fault: what it affects (`strikes`), what VMs notice (`seen`), its parameters.

    `longest_s` is its longest and default duration; None: until it is cleared.
    """

    kind: str
    strikes: str
    seen: str
    parameters: dict[str, FaultParameterView]
    longest_s: float | None


class FaultsView(BaseView, frozen=True, kw_only=True):
    """Active faults and storms, and all kinds of faults that can be set."""

    faults: tuple[FaultView, ...]
    storms: tuple[StormView, ...]
    kinds: tuple[FaultKindView, ...]


class ClearedFaultsView(BaseView, frozen=True, kw_only=True):
    """The faults and storms that a call ended; empty if none matched."""

    cleared: tuple[FaultView, ...]
    storms: tuple[StormView, ...]


class ClockView(BaseView, frozen=True, kw_only=True):
    """The service's time, how fast it runs (1: as real time), and whether it is a lab."""

    now: float
    speed: float
    lab: bool


class BackupView(BaseView, frozen=True, kw_only=True):
    """The path of a new backup file on the service's machine, and its size in bytes."""

    path: str
    bytes: int


class HealthCheckView(BaseView, frozen=True, kw_only=True):
    """The result of one health check; `remedy` says what to do if it failed."""

    name: str
    ok: bool
    text: str
    remedy: str


class HealthReportView(BaseView, frozen=True, kw_only=True):
    """The results of all health checks, passed or failed."""

    checks: tuple[HealthCheckView, ...]


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    """A replay of a recording in one scope: its position, speed and end.

    `ended` is how it ended, None while it runs; `reason` says why, for people.
    """

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
