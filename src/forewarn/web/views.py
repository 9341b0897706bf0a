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
    pass


class HostView(BaseView, frozen=True, kw_only=True):
    name: str
    location: str
    zone: str
    health: str
    vms: tuple[str, ...]


class ScopeSummaryView(BaseView, frozen=True, kw_only=True):
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
    reason: str
    text: str
    until: float | None


class ActView(BaseView, frozen=True, kw_only=True):
    vm: str
    verb: str
    to_host: str
    ok: bool | None
    at: float | None
    note: str


class EventView(BaseView, frozen=True, kw_only=True):
    id: str
    scope: str
    kind: str | None  # None: unlisted
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
    given_at: float | None  # when the first VM was given it
    replaces: tuple[str, ...]


class VmView(BaseView, frozen=True, kw_only=True):
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
    restart: bool
    redeploy: bool

    @classmethod
    def from_approval(cls, approval: AutoApproval) -> AutoApprovalView:
        return cls(restart=approval.restart, redeploy=approval.redeploy)


class VmSupervisorView(BaseView, frozen=True, kw_only=True):
    """The process that holds a VM made of namespaces."""

    vm: str
    pid: int
    state: str
    boot_id: str
    program: tuple[str, ...] | None


class VmSupervisorsView(BaseView, frozen=True, kw_only=True):
    keepers: tuple[VmSupervisorView, ...]


class VmWithEvents(VmView, frozen=True, kw_only=True):
    events: tuple[EventView, ...]
    keeper: VmSupervisorView | None


class FleetView(BaseView, frozen=True, kw_only=True):
    hosts: tuple[HostView, ...]
    scopes: tuple[ScopeSummaryView, ...]
    vms: tuple[VmView, ...]


class FieldChangeView(BaseView, frozen=True, kw_only=True):
    field: str
    old: Any
    new: Any


class ObjectChangeView(BaseView, frozen=True, kw_only=True):
    name: str
    fields: tuple[FieldChangeView, ...]


class FleetDifferenceView(BaseView, frozen=True, kw_only=True):
    """Names only: a fleet may have a hundred thousand VMs."""

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
    difference: FleetDifferenceView


class FleetApplyView(FleetCheckView, frozen=True, kw_only=True):
    applied: bool


class RequestView(BaseView, frozen=True, kw_only=True):
    id: str
    ask: str
    who: str
    at: float
    targets: tuple[str, ...]


class EventListView(BaseView, frozen=True, kw_only=True):
    events: tuple[EventView, ...]


class ReceiptView(EventListView, frozen=True, kw_only=True):
    request: RequestView
    replaced: tuple[str, ...]  # ids of the pending events whose place it took


class RequestStatusView(ReceiptView, frozen=True, kw_only=True):
    state: str
    waits_for: tuple[str, ...]


class RolloutView(BaseView, frozen=True, kw_only=True):
    id: str
    impact: str
    hosts: tuple[str, ...]
    scope: str
    progress: str
    why: str  # it ended so
    closed: bool
    who: str
    at: float
    notice_s: float
    max_failures: int
    tally: RolloutTally
    next_update_domains: tuple[int, ...]  # which of its scopes' update domains come next


class RolloutWithEvents(RolloutView, frozen=True, kw_only=True):
    events: tuple[EventView, ...]


class RolloutsView(BaseView, frozen=True, kw_only=True):
    rollouts: tuple[RolloutView, ...]


class EventsView(EventListView, frozen=True, kw_only=True):
    seq: int


class HistoryView(BaseView, frozen=True, kw_only=True):
    entries: tuple[HistoryEntryView, ...]
    seq: int


class HistoryEntryView(BaseView, frozen=True, kw_only=True):
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
        return cls(**{name: getattr(entry, name) for name in cls.__struct_fields__})


class HistoryPruneView(BaseView, frozen=True, kw_only=True):
    pruned: int


class FaultView(BaseView, frozen=True, kw_only=True):
    id: str
    kind: str
    strikes: str
    target: str
    vm: str  # "": a scope, or everything
    scope: str
    who: str
    set_at: float
    parameters: dict[str, float]
    count: int | None
    left: int | None  # of its count
    left_s: float | None  # real time for requests, lab time for events
    touched: int
    touched_at: float | None
    events: tuple[str, ...]
    seen: str


class StormFaultView(BaseView, frozen=True, kw_only=True):
    after_s: float
    kind: str
    vm: str
    count: int | None
    for_s: float | None
    parameters: dict[str, float]
    is_set: bool


class StormView(BaseView, frozen=True, kw_only=True):
    id: str
    seed: int
    who: str
    set_at: float
    for_s: float
    gusts: tuple[StormFaultView, ...]


class FaultParameterView(BaseView, frozen=True, kw_only=True):
    default: float
    least: float
    most: float


class FaultKindView(BaseView, frozen=True, kw_only=True):
    kind: str
    strikes: str
    seen: str
    parameters: dict[str, FaultParameterView]
    longest_s: float | None


class FaultsView(BaseView, frozen=True, kw_only=True):
    faults: tuple[FaultView, ...]
    storms: tuple[StormView, ...]
    kinds: tuple[FaultKindView, ...]


class ClearedFaultsView(BaseView, frozen=True, kw_only=True):
    cleared: tuple[FaultView, ...]
    storms: tuple[StormView, ...]


class ClockView(BaseView, frozen=True, kw_only=True):
    now: float
    speed: float
    lab: bool


class BackupView(BaseView, frozen=True, kw_only=True):
    path: str
    bytes: int


class HealthCheckView(BaseView, frozen=True, kw_only=True):
    name: str
    ok: bool
    text: str
    remedy: str


class HealthReportView(BaseView, frozen=True, kw_only=True):
    checks: tuple[HealthCheckView, ...]


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    vm: str
    scope: str
    who: str
    at: float
    speed: float
    loops: int
    loop: int  # the telling that is on, from 1
    step: int  # steps shown of it
    steps: int
    shows: str  # what the scope is shown now, in words; "": its own document
    begun_at: float  # this telling
    ends_at: float  # the last telling, if nothing ends it before
    ended: str | None
    ended_at: float | None
    reason: str
