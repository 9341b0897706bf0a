"""Use cases of those who ask for maintenance: users for their VMs, operators for hosts and fleets.

A request is durable before it is answered. One that stays within a scope is committed together with its events;
one that spans scopes is committed with what it plans, and the reconciler applies that scope by scope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from forewarn.control.desk import Desk, by_scope
from forewarn.core import lifecycle
from forewarn.core.agenda import stamped, turn
from forewarn.core.cause import CAUSES, noun
from forewarn.core.change import Commit, difference, together
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Health, Host, Power, Vm, must_have_destination
from forewarn.core.history import Entry, What
from forewarn.core.planning import ASK_CAUSE, apply, pending_platform_events, planned_for_vms
from forewarn.core.policy import Around
from forewarn.core.request import Ask, Planned, Progress, Request, Rollout
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, NotFound, Refused, Rejected

_TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of a request: the events it led to so far."""

    request: Request
    events: tuple[Event, ...]


class Requests:
    def __init__(self, *, desk: Desk, new_id: Callable[[], str]) -> None:
        self._desk = desk
        self._store = desk.store
        self._new_id = new_id

    async def ask_for_vms(
        self, ask: Ask, vms: Sequence[Vm], *, who: str, notice_s: float = 0, short_notice: bool = False
    ) -> Receipt:
        """A user operation, an eviction or a scale-in, for one VM or several: all of them, or none."""
        if not vms:
            raise Rejected(f"{ask} needs at least one VM: name it")
        request = self._request(ask, who, [vm.name for vm in vms], notice_s, short_notice)
        if CAUSES[ASK_CAUSE[ask]].moves:
            for vm in vms:
                must_have_destination(vm, self._desk.placement.hosts())
        return await self._accept(request, planned_for_vms(request, vms, self._new_id))

    async def degrade(self, host_name: str, *, who: str, notice_s: float, short_notice: bool = False) -> Receipt:
        """Hardware predicted to fail: every VM on the host is to be redeployed elsewhere (spec §6.4)."""
        host = self.host(host_name)
        if host.health is not Health.HEALTHY:
            raise Refused(f"host {host.name!r} is {host.health} already: repair it first with `forewarn repair`")
        request = self._request(Ask.DEGRADE, who, [host.name], notice_s, short_notice)
        return await self._accept_for_host(request, host, Health.DEGRADED)

    async def fail(self, host_name: str, *, who: str) -> Receipt:
        """A host is gone without warning: its VMs are redeployed at once (spec §6.4)."""
        host = self.host(host_name)
        if host.health is Health.FAILED:
            raise Refused(f"host {host.name!r} has failed already: repair it first with `forewarn repair`")
        bound = map(self._store.vm, self._desk.placement.bound_for(host.name))
        arriving = [vm for vm in bound if vm is not None and vm.removed_at is None]
        request = self._request(Ask.FAIL, who, [host.name])
        return await self._accept_for_host(request, host, Health.FAILED, arriving)

    async def repair(self, host_name: str, *, who: str) -> Host:
        host = self.host(host_name)
        if host.health is Health.HEALTHY:
            raise Refused(f"host {host.name!r} is healthy: there is nothing to repair")
        if staying := [e for vm in self._store.vms(host=host.name) for e in self._predictions(vm, host)]:
            raise Refused(
                f"host {host.name!r} still has {len(staying)} VMs that are to leave it: "
                f"withdraw event {staying[0].id} and the others, or wait until they have left"
            )
        healthy = replace(host, health=Health.HEALTHY)
        await self._store.commit(Commit(hosts=(healthy,), entries=(self._host_entry(healthy, who, "repaired"),)))
        return healthy

    async def start_rollout(
        self, rollout: Rollout, *, who: str, notice_s: float = 0, short_notice: bool = False
    ) -> Request:
        request = self.planned_rollout(rollout, who=who, notice_s=notice_s, short_notice=short_notice)
        await self._store.commit(Commit(requests=(request,), entries=(self._requested(request),)))
        return request

    def planned_rollout(
        self, rollout: Rollout, *, who: str, notice_s: float = 0, short_notice: bool = False
    ) -> Request:
        """The rollout as it would be started; refused where it cannot be."""
        minimum = CAUSES[rollout.cause].minimum_notice_s
        if short_notice and not notice_s:
            raise Rejected("a short notice needs a length: say how long with --notice")
        if notice_s and notice_s < minimum and not short_notice:
            raise Rejected(
                f"notice of {notice_s:g} s is shorter than the {minimum:g} s a {CAUSES[rollout.cause].kind} needs: "
                f"give {minimum:g} s or more, or say --short-notice to rehearse with less"
            )
        rollout = self._spelled(rollout)
        vms = self._targets(rollout)
        if CAUSES[rollout.cause].moves:
            for vm in vms:
                must_have_destination(vm, self._desk.placement.hosts())
        names = [rollout.scope_id] if rollout.scope_id else list(rollout.hosts)
        request = self._request(Ask.ROLLOUT, who, names, notice_s or minimum, short_notice)
        return replace(request, rollout=rollout)

    async def steer_rollout(self, request_id: str, progress: Progress, *, who: str) -> Request:
        """Pause, resume or abort a rollout that is under way."""
        for _ in range(20):
            request = self.rollout(request_id)
            assert request.rollout is not None
            state = request.rollout.progress
            allowed = {
                Progress.PAUSED: {Progress.RUNNING},
                Progress.RUNNING: {Progress.PAUSED},
                Progress.ABORTED: {Progress.RUNNING, Progress.PAUSED},
            }[progress]
            if state not in allowed:
                raise Refused(f"rollout {request.id} is {_why_not(state, progress)}")
            what, word = _STEERED[progress]
            why = f"{who} ended it" if progress is Progress.ABORTED else ""
            steered = replace(request, rollout=replace(request.rollout, progress=progress, why=why))
            text = f"rollout {request.id} {word} by {who}"
            entry = Entry(at=self._now(), what=what, who=who, text=text, request_id=request.id)
            try:
                await self._store.commit(Commit(requests=(steered,), entries=(entry,)))
                return steered
            except Conflict:
                continue
        raise Conflict(f"rollout {request_id} changed too often while it was steered: ask again")

    async def approve(self, event_id: str, *, who: str) -> Event:
        """An approval from outside the VM."""
        event = self.event(event_id)
        if not event.is_live:
            raise Refused(f"event {event.id} is over ({event.ending}): there is nothing to approve")
        scope = await self._desk.decide(event.scope_id, approving((event.id,), who))
        return scope.event(event.id) or self.event(event.id)

    async def approve_all(self, events: Sequence[Event], *, who: str) -> None:
        """Approvals from outside the VMs, in one scope or several: all of them, or none."""
        grouped = by_scope(list(events), lambda event: event.scope_id)
        for _ in range(_TRIES):
            try:
                await self._store.commit(together(*(self._approval(s, e, who) for s, e in grouped.items())))
                return
            except Conflict:
                continue
        raise Conflict("the events changed too often while they were approved: ask again")

    async def perform_maintenance(self, vms: Sequence[Vm], *, who: str) -> Receipt:
        """Users take pending platform maintenance now (spec §6.4): of every VM that has some, in one transaction."""
        for _ in range(_TRIES):
            pending = self._pending(vms)
            request = self._request(Ask.PERFORM_MAINTENANCE, who, [vm.name for vm in vms])
            request = replace(request, approves=tuple(event.id for event in pending))
            record = Commit(requests=(request,), entries=(self._requested(request),))
            grouped = by_scope(pending, lambda event: event.scope_id)
            try:
                await self._store.commit(together(record, *(self._approval(s, e, who) for s, e in grouped.items())))
                return Receipt(request=request, events=tuple(self.event(event.id) for event in pending))
            except Conflict:
                continue
        raise Conflict("the events changed too often while they were approved: ask again")

    def _pending(self, vms: Sequence[Vm]) -> list[Event]:
        """Each once; Refused when no VM has any."""
        found: dict[str, Event] = {}
        refusal: Refused | None = None
        for vm in vms:
            try:
                events = pending_platform_events(self._desk.scope(vm.scope_id), vm.name)
                found.update({event.id: event for event in events})
            except Refused as error:
                refusal = refusal or error
        if not found:
            raise refusal or Rejected("perform-maintenance needs at least one VM: name it")
        return list(found.values())

    def _approval(self, scope_id: str, events: list[Event], who: str) -> Commit:
        old, around = self._desk.scope(scope_id), self._desk.around()
        approved = approving(tuple(event.id for event in events), who)(old, around)
        return difference(old, stamped(approved, around))

    async def withdraw(self, event_id: str, *, who: str, reason: str = "") -> Event:
        event = self.event(event_id)

        def decision(scope: Scope, around: Around) -> Scope:
            live = scope.event(event.id) or self.event(event.id)  # over by now: say so
            why = reason or f"taken back by {who}"
            return turn(lifecycle.withdraw(scope, live, by=who, reason=why, now=around.now), around)

        await self._desk.decide(event.scope_id, decision)
        return self.event(event.id)

    def event(self, event_id: str) -> Event:
        event = self._store.event(event_id.strip().upper())
        if event is None:
            raise NotFound(f"event {event_id!r} does not exist: `forewarn events` lists those under way")
        return event

    def host(self, name: str) -> Host:
        hosts = self._desk.placement.hosts()
        host = next((host for host in hosts if host.name.casefold() == name.casefold()), None)
        if host is None:
            raise NotFound(f"host {name!r} does not exist: `forewarn fleet show` lists the hosts")
        return host

    def rollout(self, request_id: str) -> Request:
        request = self._store.request(request_id)
        if request is None or request.rollout is None:
            raise NotFound(f"rollout {request_id!r} does not exist: `forewarn rollout show` lists them")
        return request

    def _targets(self, rollout: Rollout) -> list[Vm]:
        if bool(rollout.hosts) == bool(rollout.scope_id):
            raise Rejected("a rollout goes over hosts or over one scope: name the one or the other")
        if rollout.max_failures < 0:
            raise Rejected(f"max failures {rollout.max_failures} is negative: give 0 (never stop) or more")
        if rollout.scope_id:
            return list(self._desk.scope(rollout.scope_id).present)
        return [vm for name in rollout.hosts for vm in self._store.vms(host=name)]

    def _spelled(self, rollout: Rollout) -> Rollout:
        """Its hosts by their own names, each once."""
        names = dict.fromkeys(self.host(name).name for name in rollout.hosts)
        return replace(rollout, hosts=tuple(names))

    async def _accept_for_host(
        self, request: Request, host: Host, health: Health, arriving: Sequence[Vm] = ()
    ) -> Receipt:
        there = [*self._store.vms(host=host.name), *arriving]
        vms = list({vm.key: vm for vm in there if vm.power is not Power.DEALLOCATED}.values())
        changed = replace(host, health=health)
        others = [h for h in self._desk.placement.hosts() if h.name != host.name]
        for vm in vms:
            must_have_destination(vm, others)
        planned = planned_for_vms(request, vms, self._new_id, host=host.name)
        self._rehearse(planned)
        entries = (self._requested(request), self._host_entry(changed, request.who, str(health)))
        await self._store.commit(Commit(requests=(request,), planned=planned, hosts=(changed,), entries=entries))
        return Receipt(request=request, events=())

    async def _accept(self, request: Request, planned: tuple[Planned, ...]) -> Receipt:
        record = Commit(requests=(request,), entries=(self._requested(request),))
        scopes = by_scope(list(planned), lambda item: item.scope_id)
        if len(scopes) == 1:
            scope = await self._desk.decide(planned[0].scope_id, _applying_all(planned), also=record)
            return Receipt(request=request, events=tuple(e for e in scope.events if e.request_id == request.id))
        self._rehearse(planned)
        await self._store.commit(Commit(requests=record.requests, entries=record.entries, planned=planned))
        return Receipt(request=request, events=())

    def _rehearse(self, planned: tuple[Planned, ...]) -> None:
        """Refuse now what would be refused when it is applied: all of a request, or none of it."""
        for scope_id, items in by_scope(list(planned), lambda item: item.scope_id).items():
            _applying_all(tuple(items))(self._desk.scope(scope_id), self._desk.around(rehearsal=True))

    def _predictions(self, vm: Vm, host: Host) -> list[Event]:
        live = self._desk.scope(vm.scope_id).live(Status.SCHEDULED)
        return [e for e in live if e.host == host.name and vm.name in e.vms and ASK_CAUSE[Ask.DEGRADE] is e.cause]

    def _request(
        self, ask: Ask, who: str, targets: list[str], notice_s: float = 0, short_notice: bool = False
    ) -> Request:
        if notice_s < 0:
            raise Rejected(f"notice of {notice_s:g} s is negative: give 0 or more")
        return Request(
            id=self._new_id().lower(),
            ask=ask,
            who=who,
            at=self._now(),
            targets=tuple(targets),
            notice_s=notice_s,
            short_notice=short_notice,
        )

    def _requested(self, request: Request) -> Entry:
        text = f"{request.who} asked for {noun(request.ask)} of {', '.join(request.targets[:5])}"
        if len(request.targets) > 5:
            text += f" and {len(request.targets) - 5} more"
        vm = request.targets[0] if request.ask in _FOR_VMS and len(request.targets) == 1 else ""
        return Entry(at=request.at, what=What.REQUESTED, who=request.who, text=text, request_id=request.id, vm=vm)

    def _host_entry(self, host: Host, who: str, word: str) -> Entry:
        return Entry(at=self._now(), what=What.HOST, who=who, text=f"host {host.name} {word}", host=host.name)

    def _now(self) -> float:
        return self._desk.clock.now()


_FOR_VMS = frozenset(Ask) - {Ask.ROLLOUT, Ask.DEGRADE, Ask.FAIL}
_STEERED = {
    Progress.PAUSED: (What.PAUSED, "paused"),
    Progress.RUNNING: (What.RESUMED, "resumed"),
    Progress.ABORTED: (What.STOPPED, "aborted"),
}


def approving(event_ids: tuple[str, ...], by: str) -> Callable[[Scope, Around], Scope]:
    """Approve events of a scope; those that are over by now stay as they are."""

    def decision(scope: Scope, around: Around) -> Scope:
        for event_id in event_ids:
            if (event := scope.event(event_id)) is not None:
                scope = lifecycle.approve(scope, event, by=by, now=around.now)
        return scope

    return decision


def _applying_all(planned: tuple[Planned, ...]) -> Callable[[Scope, Around], Scope]:
    def decision(scope: Scope, around: Around) -> Scope:
        for item in planned:
            scope = apply(scope, item, around)
        return scope

    return decision


def _why_not(state: Progress, wanted: Progress) -> str:
    """Why a rollout in this state cannot be steered so, and what can be done."""
    if state in (Progress.RUNNING, Progress.PAUSED):
        return f"{state} already: {'pause' if state is Progress.RUNNING else 'resume'} or abort it"
    return f"{state}: it has ended and cannot be {_STEERED[wanted][1]}; start another"
