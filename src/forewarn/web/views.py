"""The response structs of the API, which the portal's pages show too, and `ViewBuilder`, which makes them.

Times are in lab time, in JSON as ISO 8601 text; durations end in `_s`. Field names are JSON keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from forewarn.base.times import Timestamp, timestamp
from forewarn.control.event_facts import EventWaits
from forewarn.core.event import Act, Event
from forewarn.core.fleet import AutoApproval, Host, Vm
from forewarn.core.fleetfile.problems import FleetFileProblem
from forewarn.core.history import HistoryEntry, LastPoll
from forewarn.core.request import MaintenanceRequest
from forewarn.core.scope import Scope, scope_title, scope_title_of_vm
from forewarn.web.context import RequestContext
from forewarn.web.dependencies import VmSupervisorInfo
from forewarn.web.polling_report import iterate_cooperatively, silent_seconds
from forewarn.web.queries import event_lists_vm


class BaseView(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the response structs, which are encoded as JSON objects."""


class HostView(BaseView, frozen=True, kw_only=True):
    """A host with its health (healthy, degraded or failed) and the names of its visible VMs."""

    name: str  # as the fleet spells it
    location: str  # its name
    zone: str  # "": none
    health: str  # healthy, degraded or failed
    unreachable: bool  # it does not answer the hypervisor; acts on its VMs wait, and it has not failed
    confirmed_down: bool  # an operator states that it is certainly down, so its VMs may be started elsewhere
    vms: tuple[str, ...]  # in the order they were added


class ScopeSummaryView(BaseView, frozen=True, kw_only=True):
    """A scope: whether Scheduled Events is enabled, its epoch and incarnation, its present VMs.

    `events` is the number of its live events; `last_request_at` is when it was last polled or enabled.
    """

    id: str  # such as `set:SUBSCRIPTION/GROUP/NAME` in lower case
    title: str  # such as `availability set web`
    enabled: bool  # whether documents show its events
    enabled_at: Timestamp | None  # None: not enabled
    epoch: int  # grows each time it is enabled or reset; after a restored backup it is a large number
    incarnation: int  # the incarnation of its document, within the epoch
    last_request_at: Timestamp | None  # when it was last polled or enabled; None: never
    vms: tuple[str, ...]  # names
    update_domains: tuple[int, ...]  # of these VMs, each once, ascending
    events: int  # how many are live


class WaitView(BaseView, frozen=True, kw_only=True):
    """What a scheduled event waits for before it starts: a code, a text, and until when at the latest.

    Codes: notice (approval or NotBefore), grace (the service was down when its notice ended), silence (the node of a
    VM's host was down then; `until` may move), window (no maintenance window is open), hold (all rollouts are on hold),
    move (another event moves one of its VMs), terminates (others of its placement group are not approved), update
    domain (another is in maintenance), gate (VMs on its host are not ready).
    """

    reason: str  # the code
    text: str  # for people; completes "it waits for …"
    until: Timestamp | None  # None: not known, because more than the time decides


class ActView(BaseView, frozen=True, kw_only=True):
    """The work of an event on one VM; `ok` and `at` are None until its outcome is known."""

    vm: str  # its name
    verb: str  # what is done to the VM, such as freeze, reboot or redeploy
    to_host: str  # the host that the VM comes to; "": it stays where it is, leaves its host, or no host is free
    ok: bool | None  # False: it failed; None: no outcome yet
    at: Timestamp | None  # when the outcome was reported; None: no outcome yet
    note: str  # while it is under way: its progress, or what it waits for; then of the outcome, such as why it failed


class EventView(BaseView, frozen=True, kw_only=True):
    """An event with its times, VMs, acts, outcome and what it waits for.

    Times are lab time, None until they happen; `not_before` is when it may start without an approval.
    """

    id: str  # a GUID in upper case
    scope: str  # its id
    kind: str | None  # EventType in documents, such as Reboot; None if no document lists the event
    verb: str  # what is done to its VMs, such as freeze or reboot
    cause: str  # such as host update or user restart
    status: str  # scheduled, started or over
    source: str  # Platform or User
    vms: tuple[str, ...]  # names
    published_at: Timestamp  # of one that is not listed, when it was performed
    not_before: Timestamp  # from when on it may start without an approval
    approved_at: Timestamp | None  # None: not approved
    approved_by: str  # a name, or `policy` if a setting of the VM approved it; "": not approved
    started_at: Timestamp | None  # None: not started
    over_at: Timestamp | None  # None: it is live
    ending: str | None  # finished, failed, withdrawn or not needed; None while it is live
    reason: str  # why it failed, was withdrawn or was not needed; "" otherwise
    note: str  # why it has no notice, or less or more than usual
    listed: bool  # false: performed at once, and no document shows it
    host: str  # the host that the work is about; "": none
    update_domain: int  # the update domain of its first VM, and in general of all
    request_id: str  # of the request; of an event that a fault made, the id of the fault
    requested_by: str  # who requested it
    description: str  # as documents show it
    duration_s: int  # of the interruption, as documents show it; -1: not known
    waits_for: WaitView | None  # None: it may start, has started or is over
    acts: tuple[ActView, ...]  # one per VM that it still affected when it started; () before
    delivered_at: Timestamp | None  # when it was first delivered to a VM; None: not yet
    replaces: tuple[str, ...]  # ids of the events it replaced


class VmView(BaseView, frozen=True, kw_only=True):
    """A VM with its settings, its place and its last poll; `pending` is the number of its live events.

    Texts are empty where a VM has no such value.
    """

    name: str  # unique in its resource group
    key: str  # `subscription/group/name` in lower case
    resource_group: str  # its name
    subscription_id: str  # mostly a GUID
    location: str  # that of its host
    zone: str  # "": none
    scope: str  # the id of its scope
    scope_title: str  # such as `availability set web`
    computer_name: str  # its hostname
    size: str  # such as Standard_D2s_v5
    os_type: str  # Linux or Windows
    availability_set: str  # its name; "": none, as in the next three
    scale_set: str  # its name
    orchestration: str  # the orchestration of its scale set: Uniform or Flexible; "" if it is in none
    placement_group: str  # its name, within the scale set
    cloud_service: str  # its name
    update_domain: int  # from 0
    fault_domain: int  # from 0
    priority: str  # Regular or Spot
    eviction_policy: str  # Deallocate or Delete; it matters only for a Spot VM
    terminate_notice_min: int  # minutes; 0: no terminate notification
    auto_approve: AutoApprovalView  # which operations of users need no notice
    approves_all_down: bool  # False: its policy approves nothing that stops the last running VM of its scope
    narrow_delivery: bool  # it sees only the events that affect it, not those of other VMs of its set
    tags: dict[str, str]  # name → value
    address: str  # its IP address in a trusted network; "": none
    url: str | None  # where the VM reads its events in a lab; None on a real network, or if it is not served
    host: str  # "" while it is deallocated or removed
    power: str  # running, stopped or deallocated
    last_polled_at: Timestamp | None  # of its last poll or approval; None: it never sent one
    silent_s: float | None  # real time since its last poll, or since the end of a long poll; None: it never polled
    polled_version: str | None  # the api-version of its last poll; None: it never polled
    polls: int  # how many polls and approvals it has sent since it was added
    pending: int  # its live events


class AutoApprovalView(BaseView, frozen=True, kw_only=True):
    """Which operations that a user requests for a VM are approved automatically, and so need no notice."""

    restart: bool  # restarts that users request
    redeploy: bool  # redeploys that users request

    @classmethod
    def from_approval(cls, approval: AutoApproval) -> AutoApprovalView:
        """Return the view of a VM's automatic approval, with the same two values."""
        return cls(restart=approval.restart, redeploy=approval.redeploy)


class VmSupervisorView(BaseView, frozen=True, kw_only=True):
    """The supervisor process of a namespace VM; `program` is the VM's command line, None if it has none."""

    vm: str  # its name
    pid: int  # the pid of the supervisor
    state: str  # the state of the VM: running, frozen, down or ended
    boot_id: str  # the id of the VM's current boot; every start of the VM has another
    program: tuple[str, ...] | None  # the command line in the VM; None: it has none


class VmSupervisorsView(BaseView, frozen=True, kw_only=True):
    """The connected supervisors (`supervisors`), also of frozen and stopped namespace VMs, sorted by VM key."""

    supervisors: tuple[VmSupervisorView, ...]  # sorted by VM key


class VmWithEvents(VmView, frozen=True, kw_only=True):
    """The fields of VmView, its live events and, of a namespace VM, its connected supervisor (`supervisor`)."""

    events: tuple[EventView, ...]  # live, in order of publication
    supervisor: VmSupervisorView | None  # None: no supervisor of the VM is connected


class FleetView(BaseView, frozen=True, kw_only=True):
    """Hosts, VMs and the VMs' scopes, as far as the caller may see them and asked for them."""

    hosts: tuple[HostView, ...]  # sorted by name, ignoring letter case
    scopes: tuple[ScopeSummaryView, ...]  # each once
    vms: tuple[VmView, ...]  # in the order they were added


class FieldChangeView(BaseView, frozen=True, kw_only=True):
    """One changed field of a host or VM, with its old and new value."""

    field: str  # its name
    old: Any  # as stored
    new: Any  # as the file says


class ObjectChangeView(BaseView, frozen=True, kw_only=True):
    """A host or VM that a fleet file changes, with its changed fields."""

    name: str  # the name of the host or VM
    fields: tuple[FieldChangeView, ...]


class FleetDifferenceView(BaseView, frozen=True, kw_only=True):
    """What a fleet file changes, by names; `lines` say it in words, at most 20 of each kind.

    `lines` end with `summary` if there are changes or problems; the tuples name all. `problems` forbid to apply it.
    `resurrected` VMs were deleted before and are added again; `stay_deleted` VMs are in the file but stay deleted.
    """

    source: str  # the name of the file in messages
    summary: str  # how many VMs and hosts to add, change and remove, in words
    is_empty: bool  # the file asks for no change; problems do not count
    hosts_added: tuple[str, ...]  # names, as in the next tuples
    hosts_changed: tuple[ObjectChangeView, ...]
    hosts_removed: tuple[str, ...]
    added: tuple[str, ...]
    resurrected: tuple[str, ...]  # VMs that were deleted before, and are added again
    changed: tuple[ObjectChangeView, ...]
    removed: tuple[str, ...]
    stay_deleted: tuple[str, ...]  # VMs that are in the file but stay deleted
    unchanged: int  # how many VMs stay as they are
    problems: tuple[FleetFileProblem, ...]  # with any, the file cannot be applied
    lines: tuple[str, ...]  # the changes in words


class FleetCheckView(BaseView, frozen=True, kw_only=True):
    """What a fleet file would change; nothing was changed."""

    difference: FleetDifferenceView  # to the fleet as it is


class FleetApplyView(FleetCheckView, frozen=True, kw_only=True):
    """What a fleet file changed (`difference`), or would change in a dry run."""

    applied: bool  # false in a dry run, and if it changes nothing (`difference.is_empty`)


class RequestView(BaseView, frozen=True, kw_only=True):
    """A maintenance request: the `operation`, the names of its targets, who made it and when."""

    id: str  # a GUID in lower case
    operation: str  # such as restart, rollout or fail
    requested_by: str  # the name of the caller
    requested_at: Timestamp
    targets: tuple[str, ...]  # names of VMs or hosts, or words for what a rollout covers


class EventListView(BaseView, frozen=True, kw_only=True):
    """A list of events. Views that extend it say which events, and add other fields."""

    events: tuple[EventView, ...]


class EventsInScopesView(EventListView, frozen=True, kw_only=True):
    """Events (`events`), and the scopes they are in, each once: all VMs of a scope are shown its events."""

    scopes: tuple[ScopeSummaryView, ...]  # each once


class ReceiptView(EventsInScopesView, frozen=True, kw_only=True):
    """An accepted request, its published or approved `events`, their `scopes`, and replaced events."""

    request: RequestView
    replaced: tuple[str, ...]  # ids of the pending events that its events replaced
    replaced_events: tuple[EventView, ...]  # these events, as far as they are still stored


class RequestStatusView(EventListView, frozen=True, kw_only=True):
    """A request with its state, its `events` and sentences about what it waits for.

    The state is in progress, succeeded, failed or canceled.
    """

    request: RequestView
    replaced: tuple[str, ...]  # ids of the pending events that its events replaced
    state: str  # in progress, succeeded, failed or canceled
    waits_for: tuple[str, ...]  # sentences, while it is in progress; empty when it is over
    skipped: tuple[str, ...]  # when it is over: why parts of it did not become events, in sentences


class EventsView(EventListView, frozen=True, kw_only=True):
    """Events (`events`), oldest first, and the history's sequence number from just before they were read."""

    seq: int  # given as `after` to the history, lists what happened since


class HistoryView(BaseView, frozen=True, kw_only=True):
    """History entries, oldest first, and the sequence number to give as `after` for the next ones."""

    entries: tuple[HistoryEntryView, ...]
    seq: int  # the last one that was searched, even if there are no entries


class HistoryEntryView(BaseView, frozen=True, kw_only=True):
    """One history entry: what happened, when, who caused it; ids and names are "" if it has none."""

    seq: int  # its number, which grows with every entry
    at: Timestamp
    kind: str  # its kind, such as requested, published or started
    text: str  # a sentence for people
    actor: str  # the name of the user or client, or of the service itself
    scope_id: str  # the id of the scope that it is about; "": none or several
    event_id: str  # upper case; "": none or several
    request_id: str  # lower case; of an event that a fault made, the id of the fault; "": none
    vm: str  # the name of the VM, not its key; "" even if the entry is about several VMs
    host: str  # the name of the host

    @classmethod
    def from_entry(cls, entry: HistoryEntry) -> HistoryEntryView:
        """Return the view of a stored history entry, with the same values."""
        return cls(**{name: getattr(entry, name) for name in cls.__struct_fields__} | {"at": timestamp(entry.at)})


class HistoryPruneView(BaseView, frozen=True, kw_only=True):
    """How many history entries were deleted; events deleted with them are not counted."""

    pruned: int  # entries


class ClockView(BaseView, frozen=True, kw_only=True):
    """The service's time, how fast it runs (1: as real time), and whether it is a lab."""

    now: Timestamp
    speed: float  # seconds of lab time per second of real time; 0: the clock is stopped
    lab: bool  # whether the clock can be moved


class BackupView(BaseView, frozen=True, kw_only=True):
    """The path of a new backup file on the service's machine, and its size in bytes."""

    path: str  # absolute
    bytes: int  # its size


class HealthCheckView(BaseView, frozen=True, kw_only=True):
    """The result of one health check; `remedy` says what to do if it failed."""

    name: str  # the name of the check
    ok: bool  # whether it found no problem
    text: str  # what the check found
    remedy: str  # what to do; means something only if `ok` is False


class HealthReportView(BaseView, frozen=True, kw_only=True):
    """The results of all health checks, passed or failed."""

    checks: tuple[HealthCheckView, ...]


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    """A replay of a recording in one scope: its position, speed and end.

    `outcome` is how it ended, None while it runs; `reason` says why it ended early, for people, and is "" otherwise.
    """

    id: str  # the id of its request
    vm: str  # the name of the VM whose scope it is shown to
    scope: str  # the id of that scope
    requested_by: str  # the name of who requested it
    requested_at: Timestamp
    speed: float  # 2: twice as fast as recorded
    loops: int  # how often the recording is replayed in all
    loop: int  # the current loop, from 1; after the end the last one
    step: int  # steps of the current loop that were shown
    steps: int  # of one loop
    shown_document: str  # a description of the document that the scope is shown; empty: its own
    loop_started_at: Timestamp  # when the current loop began, or will
    ends_at: Timestamp  # planned end of the last loop
    outcome: (
        str | None
    )  # finished, stopped (by a user), interrupted (a real event, or its VM was removed); None: it runs
    ended_at: Timestamp | None  # None while it runs
    reason: str  # why it ended early, for people; "" otherwise


_BATCH_SIZE = 500  # VMs or scopes between two chances for other tasks to run


class ViewBuilder:
    """Builds views of events, VMs, hosts and scopes for one request; checks no rights of the caller.

    It leaves faults, and other scopes that the caller may not see, out of the texts of views. It caches scopes and
    gates (see `EventWaits`), so make a new one for each request, after `flush_observations`.
    """

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._store = context.store
        waits = EventWaits(context.control, context.can_see_scope)
        self.pending_wait, self.load_scope, self._scopes = waits.pending_wait, waits.load_scope, waits.scopes
        self._unreachable_hosts = context.control.unreachable_hosts()
        self._polls: dict[str, LastPoll] | None = None  # of the whole fleet, set by `fleet`

    def events(self, events: Iterable[Event]) -> tuple[EventView, ...]:
        """Return views of these events, in order, with what they wait for and when they were delivered."""
        return tuple(self.event(event) for event in events)

    def scopes_of(self, events: Iterable[Event]) -> tuple[ScopeSummaryView, ...]:
        """Return views of the scopes of these events, each once, in the order of the events."""
        scopes = map(self.load_scope, dict.fromkeys(event.scope_id for event in events))
        return tuple(self.scope(scope) for scope in scopes if scope is not None)

    def event(self, event: Event) -> EventView:
        """Return the view of an event, with what it waits for and when it was first delivered to a VM."""
        event = self._context.visibility.shown_event(event)
        row = event.rules
        wait = self.pending_wait(event)
        return EventView(
            id=event.id,
            scope=event.scope_id,
            kind=row.kind if event.listed else None,
            verb=row.verb,
            cause=event.cause,
            status=event.status,
            source=row.source,
            vms=event.vms,
            published_at=timestamp(event.published_at),
            not_before=timestamp(event.not_before),
            approved_at=timestamp(event.approved_at),
            approved_by=event.approved_by,
            started_at=timestamp(event.started_at),
            over_at=timestamp(event.over_at),
            ending=event.ending,
            reason=event.reason,
            note=event.note,
            listed=event.listed,
            host=event.host,
            update_domain=event.update_domain,
            request_id=event.request_id,
            requested_by=event.requested_by,
            description=row.description,
            duration_s=row.duration_s,
            waits_for=WaitView(reason=wait.reason, text=wait.text, until=timestamp(wait.until)) if wait else None,
            acts=tuple(self._act(act) for act in event.acts),
            delivered_at=timestamp(
                min((delivery.at for delivery in self._store.deliveries(event_id=event.id)), default=None)
            ),
            replaces=event.replaces,
        )

    def _act(self, act: Act) -> ActView:
        outcome = act.outcome
        return ActView(
            vm=act.name,
            verb=act.verb,
            to_host=act.to_host,
            ok=outcome.ok if outcome else None,
            at=timestamp(outcome.at if outcome else None),
            note=outcome.note if outcome else self._context.control.executor.progress.note(act.id),
        )

    def vm(self, vm: Vm) -> VmView:
        """Return the view of a VM, present or removed, with its last poll and the number of its live events."""
        scope = self.load_scope(vm.scope_id)
        polled = self._polled(vm)
        base = self._context.dependencies.endpoint_of(vm)
        return VmView(
            name=vm.name,
            key=vm.key,
            resource_group=vm.resource_group,
            subscription_id=vm.subscription_id,
            location=vm.location,
            zone=vm.zone,
            scope=vm.scope_id,
            scope_title=scope_title_of_vm(vm),
            computer_name=vm.computer_name or vm.name,
            size=vm.size,
            os_type=vm.os_type,
            availability_set=vm.availability_set,
            scale_set=vm.scale_set,
            orchestration=vm.orchestration if vm.scale_set else "",
            placement_group=vm.placement_group,
            cloud_service=vm.cloud_service,
            update_domain=vm.update_domain,
            fault_domain=vm.fault_domain,
            priority=vm.priority,
            eviction_policy=vm.eviction_policy,
            terminate_notice_min=vm.terminate_notice_min,
            auto_approve=AutoApprovalView.from_approval(vm.auto_approve),
            approves_all_down=vm.approves_all_down,
            narrow_delivery=vm.narrow_delivery,
            tags=vm.tags,
            address=vm.address,
            url=f"{base}/metadata/scheduledevents" if base else None,
            host=vm.host,
            power=vm.power,
            last_polled_at=timestamp(polled.at if polled else None),
            silent_s=self._silent_s(polled) if polled else None,
            polled_version=polled.version if polled else None,
            polls=polled.count if polled else 0,
            pending=len(live_events_of_vm(scope, vm.name)) if scope else 0,
        )

    def host(self, host: Host, vms: Iterable[Vm] | None = None) -> HostView:
        """Return the view of a host that names `vms`, or all VMs on it, visible or not, if that is None."""
        names = tuple(vm.name for vm in (self._store.vms(host=host.name) if vms is None else vms))
        return HostView(
            name=host.name,
            location=host.location,
            zone=host.zone,
            health=host.health,
            unreachable=host.name in self._unreachable_hosts,
            confirmed_down=host.confirmed_down,
            vms=names,
        )

    def scope(self, scope: Scope) -> ScopeSummaryView:
        """Return the view of a scope with the names of its present VMs and the number of its live events."""
        return ScopeSummaryView(
            id=scope.id,
            title=scope_title(scope),
            enabled=scope.is_enabled,
            enabled_at=timestamp(scope.enabled_at),
            epoch=scope.epoch,
            incarnation=scope.incarnation,
            last_request_at=timestamp(scope.last_request_at),
            vms=tuple(vm.name for vm in scope.present_vms),
            update_domains=tuple(sorted({vm.update_domain for vm in scope.present_vms})),
            events=len(scope.live_events()),
        )

    async def fleet(self, hosts: list[Host], vms: list[Vm], host_vms: list[Vm]) -> FleetView:
        """Return views of these hosts and VMs, and of the VMs' scopes; lets other tasks run in between."""
        self._polls = {polled.vm: polled for polled in self._store.last_polls()}
        by_host: dict[str, list[Vm]] = defaultdict(list)
        for vm in host_vms:
            by_host[vm.host].append(vm)
        vm_views = [self.vm(vm) async for vm in iterate_cooperatively(vms, _BATCH_SIZE)]
        scopes = [
            self.scope(scope)
            async for scope in iterate_cooperatively(self._scopes.values(), _BATCH_SIZE)
            if scope is not None
        ]
        return FleetView(
            hosts=tuple(self.host(host, by_host[host.name]) for host in hosts),
            scopes=tuple(scopes),
            vms=tuple(vm_views),
        )

    def _silent_s(self, polled: LastPoll) -> float:
        pace = self._context.dependencies.pace_of(polled.vm)
        return round(silent_seconds(polled, pace, self._context.now()), 1)

    def _polled(self, vm: Vm) -> LastPoll | None:
        if self._polls is not None:
            return self._polls.get(vm.key)
        return next((polled for polled in self._store.last_polls(scope_id=vm.scope_id) if polled.vm == vm.key), None)


def request_view(request: MaintenanceRequest) -> RequestView:
    """Return the view of a request itself, with the names of its targets, but without its events or state."""
    return RequestView(
        id=request.id,
        operation=request.operation,
        requested_by=request.requested_by,
        requested_at=timestamp(request.requested_at),
        targets=request.targets,
    )


def live_events_of_vm(scope: Scope, name: str) -> list[Event]:
    """Return the live events of the scope that affect the VM of this name, in order of publication."""
    return [event for event in scope.live_events() if event_lists_vm(event, name)]


def vm_supervisor_view(name: str, supervisor: VmSupervisorInfo) -> VmSupervisorView:
    return VmSupervisorView(
        vm=name,
        pid=supervisor.pid,
        state=supervisor.state,
        boot_id=supervisor.boot_id,
        program=supervisor.program,
    )
