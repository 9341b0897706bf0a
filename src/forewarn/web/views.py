"""What is shown: one struct per thing. Instants are POSIX seconds in lab time, spans end in `_s`."""

from __future__ import annotations

from typing import Any

import msgspec

from forewarn.core.fleet import AutoApproval
from forewarn.core.history import Entry
from forewarn.core.proposal import Problem
from forewarn.core.request import Tally


class View(msgspec.Struct, frozen=True, kw_only=True):
    pass


class HostView(View, frozen=True, kw_only=True):
    name: str
    location: str
    zone: str
    health: str
    vms: tuple[str, ...]


class ScopeView(View, frozen=True, kw_only=True):
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


class WaitView(View, frozen=True, kw_only=True):
    reason: str
    text: str
    until: float | None


class ActView(View, frozen=True, kw_only=True):
    vm: str
    verb: str
    to_host: str
    ok: bool | None
    at: float | None
    note: str


class EventView(View, frozen=True, kw_only=True):
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


class VmView(View, frozen=True, kw_only=True):
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


class AutoApprovalView(View, frozen=True, kw_only=True):
    restart: bool
    redeploy: bool

    @classmethod
    def of(cls, approval: AutoApproval) -> AutoApprovalView:
        return cls(restart=approval.restart, redeploy=approval.redeploy)


class KeeperView(View, frozen=True, kw_only=True):
    """The process that holds a VM made of namespaces."""

    vm: str
    pid: int
    state: str
    boot_id: str
    program: tuple[str, ...] | None


class KeepersView(View, frozen=True, kw_only=True):
    keepers: tuple[KeeperView, ...]


class VmWithEvents(VmView, frozen=True, kw_only=True):
    events: tuple[EventView, ...]
    keeper: KeeperView | None


class FleetView(View, frozen=True, kw_only=True):
    hosts: tuple[HostView, ...]
    scopes: tuple[ScopeView, ...]
    vms: tuple[VmView, ...]


class FieldView(View, frozen=True, kw_only=True):
    field: str
    old: Any
    new: Any


class ChangeView(View, frozen=True, kw_only=True):
    name: str
    fields: tuple[FieldView, ...]


class DifferenceView(View, frozen=True, kw_only=True):
    """Names only: a fleet may have a hundred thousand VMs."""

    source: str
    summary: str
    is_empty: bool
    hosts_added: tuple[str, ...]
    hosts_changed: tuple[ChangeView, ...]
    hosts_removed: tuple[str, ...]
    added: tuple[str, ...]
    resurrected: tuple[str, ...]
    changed: tuple[ChangeView, ...]
    removed: tuple[str, ...]
    stay_deleted: tuple[str, ...]
    unchanged: int
    problems: tuple[Problem, ...]
    lines: tuple[str, ...]


class CheckedView(View, frozen=True, kw_only=True):
    difference: DifferenceView


class AppliedView(CheckedView, frozen=True, kw_only=True):
    applied: bool


class RequestView(View, frozen=True, kw_only=True):
    id: str
    ask: str
    who: str
    at: float
    targets: tuple[str, ...]


class EventsOnly(View, frozen=True, kw_only=True):
    events: tuple[EventView, ...]


class ReceiptView(EventsOnly, frozen=True, kw_only=True):
    request: RequestView
    replaced: tuple[str, ...]  # ids of the pending events whose place it took


class RequestStanding(ReceiptView, frozen=True, kw_only=True):
    state: str
    waits_for: tuple[str, ...]


class RolloutView(View, frozen=True, kw_only=True):
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
    tally: Tally
    next_update_domains: tuple[int, ...]  # which of its scopes' update domains come next


class RolloutWithEvents(RolloutView, frozen=True, kw_only=True):
    events: tuple[EventView, ...]


class RolloutsView(View, frozen=True, kw_only=True):
    rollouts: tuple[RolloutView, ...]


class EventsView(EventsOnly, frozen=True, kw_only=True):
    seq: int


class HistoryView(View, frozen=True, kw_only=True):
    entries: tuple[EntryView, ...]
    seq: int


class EntryView(View, frozen=True, kw_only=True):
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
    def of(cls, entry: Entry) -> EntryView:
        return cls(**{name: getattr(entry, name) for name in cls.__struct_fields__})


class PrunedView(View, frozen=True, kw_only=True):
    pruned: int


class FaultView(View, frozen=True, kw_only=True):
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


class GustView(View, frozen=True, kw_only=True):
    after_s: float
    kind: str
    vm: str
    count: int | None
    for_s: float | None
    parameters: dict[str, float]
    is_set: bool


class StormView(View, frozen=True, kw_only=True):
    id: str
    seed: int
    who: str
    set_at: float
    for_s: float
    gusts: tuple[GustView, ...]


class ParameterView(View, frozen=True, kw_only=True):
    default: float
    least: float
    most: float


class FaultKindView(View, frozen=True, kw_only=True):
    kind: str
    strikes: str
    seen: str
    parameters: dict[str, ParameterView]
    longest_s: float | None


class FaultsView(View, frozen=True, kw_only=True):
    faults: tuple[FaultView, ...]
    storms: tuple[StormView, ...]
    kinds: tuple[FaultKindView, ...]


class ClearedView(View, frozen=True, kw_only=True):
    cleared: tuple[FaultView, ...]
    storms: tuple[StormView, ...]


class ClockView(View, frozen=True, kw_only=True):
    now: float
    speed: float
    lab: bool


class BackupView(View, frozen=True, kw_only=True):
    path: str
    bytes: int


class CheckView(View, frozen=True, kw_only=True):
    name: str
    ok: bool
    text: str
    remedy: str


class DoctorView(View, frozen=True, kw_only=True):
    checks: tuple[CheckView, ...]
