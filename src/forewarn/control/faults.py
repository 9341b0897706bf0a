"""Use cases for faults: set and clear them, record the requests they hit, remove expired ones."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from forewarn.base.duration import duration_text, exact_duration_text
from forewarn.base.times import RealTime
from forewarn.control.fault_registry import FaultRegistry
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.core import fault_effects
from forewarn.core.commit import Commit
from forewarn.core.decision import DecisionContext
from forewarn.core.faults import (
    FAULT_DEFINITIONS,
    ActiveFaults,
    Fault,
    FaultCategory,
    FaultHits,
    FaultKind,
    FaultStorm,
    StormFault,
    StormTarget,
    check_parameters,
    fault_duration_s,
    plan_storm,
)
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.planning import apply_planned_event
from forewarn.core.request import PlannedEvent
from forewarn.core.scope import Scope
from forewarn.errors import NotFound, Refused, Rejected, Remedy, full_message

_MAX_FAULTS = 1000
_MAX_COUNTED_VMS = 100  # VMs for which one fault counts its hits separately


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTarget:
    """What a fault applies to: one VM if `vm` is given, else one scope if `scope_id` is, else every VM."""

    name: str = "every VM"  # as messages call the target; give another one with `vm` or `scope_id`
    vm: Vm | None = None  # None: no single VM
    scope_id: str = ""  # "": none; ignored if `vm` is given


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """A fault to set, as a user or a storm asks for it.

    `count` None means no limit. `for_s` is real time for transport faults, else lab time; None means the longest of its
    kind. A kind of category AT_ONCE takes neither.
    """

    kind: FaultKind
    target: FaultTarget
    count: int | None = None  # requests or events to affect at most, in all VMs together; None: no limit
    duration_s: float | None = None  # seconds, real for transport faults, else of lab time; None: the most of its kind
    parameters: Mapping[str, float] = field(default_factory=dict)  # by name; the kind has defaults for missing ones


class FaultService:
    """Sets, clears and expires faults, and counts what they affected."""

    def __init__(
        self,
        *,
        transactions: ScopeTransactions,
        registry: FaultRegistry,
        new_id: Callable[[], str],
        real_time: Callable[[], RealTime],
    ) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._registry = registry
        self._new_id = new_id
        self._real_time = real_time

    @property
    def active(self) -> ActiveFaults:
        """The active faults and storms, oldest first; `applied` of each fault counts what it affected so far."""
        return self._registry.active

    def real_time(self) -> RealTime:
        """Return the real time in seconds since 1970, by which transport faults expire."""
        return self._real_time()

    def subscribe(self, listener: Callable[[tuple[Fault, ...]], None]) -> None:
        """Call the listener with all active faults, now and after every change; it cannot be removed."""
        self._registry.subscribe(listener)

    async def set(self, spec: FaultSpec, *, who: str) -> Fault:
        """Set a fault durably and return it with its new id, such as `f1`.

        A fault of category AT_ONCE has already happened on return, in each target scope that allows it; after
        Unavailable it may have happened in some scopes.
        """
        async with self._registry.write_lock:
            return await self._set(spec, who)

    async def clear(self, matches: Callable[[Fault], bool], *, who: str) -> tuple[Fault, ...]:
        """Remove the active faults for which `matches` returns True, durably, and return them."""
        async with self._registry.write_lock:
            active = self.active
            cleared = tuple(fault for fault in active.faults if matches(fault))
            await self._remove(active, cleared, f"cleared by {who}", who)
            return cleared

    async def record_hits(self, hits: Sequence[FaultHits]) -> None:
        """Add requests that transport faults affected to their counts, durably; cleared faults are ignored."""
        if not hits:
            return
        async with self._registry.write_lock:
            active = self.active
            counted = tuple(_with_hits(f, [hit for hit in hits if hit.fault_id == f.id]) for f in active.faults)
            if counted != active.faults:
                await self._registry.save(replace(active, faults=counted))

    async def expire(self) -> bool:
        """Remove faults whose count or duration is used up, durably; return True if there were any."""
        if not self._expired():
            return False
        async with self._registry.write_lock:
            expired = self._expired()
            await self._remove(self.active, expired, "expired", "forewarn")
            return bool(expired)

    def next_due_at(self) -> float | None:
        """Return when the next event fault expires, perhaps past; None if none has a time limit."""
        ends = (fault.until for fault in self.active.faults if fault.category is FaultCategory.EVENTS)
        return min((at for at in ends if at is not None), default=None)

    async def _set(self, spec: FaultSpec, who: str) -> Fault:
        duration_s = fault_duration_s(spec.kind, spec.count, spec.duration_s)
        parameters = check_parameters(spec.kind, spec.parameters)
        active, vm = self.active, spec.target.vm
        scope_id = vm.scope_id if vm else spec.target.scope_id
        if scope_id:
            self._transactions.load(scope_id)  # NotFound if it does not exist
        if len(active.faults) >= _MAX_FAULTS:
            raise Refused(f"{_MAX_FAULTS} faults are active, and that is the maximum", Remedy.CLEAR_FAULTS)
        fault = Fault(
            id=f"f{active.last_number + 1}",
            kind=spec.kind,
            set_by=who,
            set_at=self._now(),
            name=spec.target.name,
            vm=vm.key if vm else "",
            vm_name=vm.name if vm else "",
            scope_id=scope_id,
            count=spec.count,
            until=None if duration_s is None else self._clock_time(FAULT_DEFINITIONS[spec.kind].category) + duration_s,
            parameters=parameters,
        )
        if fault.category is FaultCategory.AT_ONCE:
            return await self._apply_at_once(fault)
        entry = self._fault_entry(fault, f"set for {fault.name} by {who}{_limits_text(spec, duration_s)}", who)
        changed = replace(active, last_number=active.last_number + 1, faults=(*active.faults, fault))
        await self._registry.save(changed, [entry])
        return fault

    async def _apply_at_once(self, fault: Fault) -> Fault:
        await self._registry.save(replace(self.active, last_number=self.active.last_number + 1))
        entry = self._fault_entry(fault, f"set for {fault.name} by {fault.set_by}", fault.set_by)
        if fault.scope_id:
            await self._apply_in_scope(fault, fault.scope_id, Commit(entries=(entry,)))
            return replace(fault, applied=_events_per_scope(fault))
        applied, refusal = 0, Refused(f"fault {fault.kind} needs a scope, and the fleet has none: add VMs")
        for scope_id in self._store.scope_ids():
            try:
                await self._apply_in_scope(fault, scope_id, Commit(entries=() if applied else (entry,)))
                applied += 1
            except Refused as error:
                refusal = error
        if not applied:
            raise refusal
        return replace(fault, applied=_events_per_scope(fault) * applied)

    async def _apply_in_scope(self, fault: Fault, scope_id: str, extra_commit: Commit) -> None:
        ids = [self._new_id() for _ in range(_events_per_scope(fault))]

        def decision(scope: Scope, context: DecisionContext) -> Scope:
            if fault.kind is FaultKind.INCARNATION_RESET:
                return fault_effects.reset_incarnation(scope, fault, context.now)
            for item in _planned_events(fault, scope, ids):
                scope = apply_planned_event(scope, item, context)
            return fault_effects.mark_events_with_fault(scope, fault, ids)

        await self._transactions.run(scope_id, decision, extra_commit=extra_commit)

    async def _remove(self, active: ActiveFaults, removed: tuple[Fault, ...], how: str, who: str) -> None:
        if not removed:
            return
        ids = {fault.id for fault in removed}
        entries = [self._fault_entry(fault, f"of {fault.name} {how}: {_hits_text(fault)}", who) for fault in removed]
        await self._registry.save(replace(active, faults=tuple(f for f in active.faults if f.id not in ids)), entries)

    def _expired(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.active.faults if fault.is_over(self._clock_time(fault.category)))

    def _fault_entry(self, fault: Fault, text: str, who: str) -> HistoryEntry:
        return replace(self._history_entry(who, f"{fault.title} {text}"), vm=fault.vm_name, scope_id=fault.scope_id)

    def _history_entry(self, who: str, text: str) -> HistoryEntry:
        return HistoryEntry(at=self._now(), kind=EntryKind.FAULT, actor=who, text=text)

    def _clock_time(self, category: FaultCategory) -> float:
        return float(self._real_time()) if category is FaultCategory.TRANSPORT else self._now()

    def _now(self) -> float:
        return self._transactions.clock.now()


def _planned_events(fault: Fault, scope: Scope, ids: Sequence[str]) -> tuple[PlannedEvent, ...]:
    if fault.kind is FaultKind.NEIGHBOUR_ONLY:
        return (fault_effects.plan_neighbour_freeze(fault, scope, ids[0]),)
    if fault.kind is FaultKind.SEVERAL_UPDATE_DOMAINS:
        return (fault_effects.plan_freeze_of_several_update_domains(fault, scope, ids[0]),)
    return fault_effects.plan_freezes(fault, scope, ids)


def _events_per_scope(fault: Fault) -> int:
    return int(fault.parameter("events")) if fault.kind is FaultKind.SEVERAL_AT_ONCE else 1


def _with_hits(fault: Fault, hits: list[FaultHits]) -> Fault:
    by_vm = dict(fault.applied_by_vm)
    for hit in hits:
        if hit.vm in by_vm or len(by_vm) < _MAX_COUNTED_VMS:
            by_vm[hit.vm] = by_vm.get(hit.vm, 0) + hit.count
    if not hits:
        return fault
    total = fault.applied + sum(hit.count for hit in hits)
    return replace(fault, applied=total, applied_by_vm=by_vm, last_applied_at=max(hit.at for hit in hits))


def _limits_text(spec: FaultSpec, duration_s: float | None) -> str:
    unit = "request" if FAULT_DEFINITIONS[spec.kind].category is FaultCategory.TRANSPORT else "event"
    count = "" if spec.count is None else f", {spec.count} {unit}{'s' if spec.count > 1 else ''} at most"
    duration = "" if duration_s is None else f", for {exact_duration_text(duration_s)} at most"
    values = "".join(f", {_parameter_text(name, value)}" for name, value in spec.parameters.items())
    return f"{values}{count}{duration}"


def _parameter_text(name: str, value: float) -> str:
    return f"{name.removesuffix('_s').replace('_', '-')} {value:g}{' s' if name.endswith('_s') else ''}"


def _hits_text(fault: Fault) -> str:
    unit = "request" if fault.category is FaultCategory.TRANSPORT else "event"
    return f"it affected {fault.applied} {unit}{'' if fault.applied == 1 else 's'}"


# Use cases for fault storms: start and clear them, and set each fault when it is due.
#
# A storm is a random schedule of faults that follows from its seed. It is saved, so it continues after a restart.

_MAX_DURATION_S = 24 * 3600.0


class FaultStormService:
    """Starts and clears fault storms, and sets their faults when they are due."""

    def __init__(self, *, transactions: ScopeTransactions, registry: FaultRegistry, faults: FaultService) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._registry = registry
        self._faults = faults

    async def start(self, seed: int, vms: Sequence[Vm], *, for_s: float, who: str) -> FaultStorm:
        """Schedule a storm of `for_s` seconds on these VMs, durably, and return it."""
        if not 0 < for_s <= _MAX_DURATION_S:
            raise Rejected(
                f"a storm cannot last {for_s:g} s: give more than 0 s, up to {duration_text(_MAX_DURATION_S)}"
            )
        if not vms:
            raise Refused("a storm needs a VM to hit, and the fleet has none", Remedy.ADD_VMS)
        storm_faults = plan_storm(seed, self._storm_targets(vms), for_s)
        async with self._registry.write_lock:
            active = self._registry.active
            number = active.last_number + 1
            storm = FaultStorm(
                id=f"s{number}", seed=seed, set_by=who, set_at=self._now(), duration_s=for_s, faults=storm_faults
            )
            what = f"{len(storm_faults)} faults within {duration_text(for_s)}"
            entry = self._history_entry(who, f"storm {storm.id} with seed {seed} set by {who}: {what}")
            await self._registry.save(replace(active, last_number=number, storms=(*active.storms, storm)), [entry])
        return storm

    async def clear(self, ids: Container[str], *, who: str) -> tuple[FaultStorm, ...]:
        """End the storms with these ids, durably, and return them, oldest first; unknown ids are ignored."""
        async with self._registry.write_lock:
            active = self._registry.active
            ended = tuple(storm for storm in active.storms if storm.id in ids)
            if ended:
                entries = [self._history_entry(who, f"storm {storm.id} cleared by {who}") for storm in ended]
                left = tuple(storm for storm in active.storms if storm not in ended)
                await self._registry.save(replace(active, storms=left), entries)
        return ended

    async def reconcile(self) -> bool:
        """Set all storm faults that are due, durably; return whether there were any. A step of the reconciler."""
        did = False
        while (storm := self._due_storm()) is not None:
            await self._set_storm_fault(storm, storm.faults[storm.gone])
            did = True
        return did

    def next_due_at(self) -> float | None:
        """Return when the next fault of any storm is due, perhaps past; None without storms."""
        moments = (storm.next_at for storm in self._registry.active.storms)
        return min((at for at in moments if at is not None), default=None)

    def _due_storm(self) -> FaultStorm | None:
        now = self._now()
        return next((s for s in self._registry.active.storms if s.next_at is not None and s.next_at <= now), None)

    async def _set_storm_fault(self, storm: FaultStorm, storm_fault: StormFault) -> None:
        """Set the fault, then save that it is set; a crash between the two sets it a second time."""
        vm = self._store.vm(storm_fault.vm)
        name = vm.name if vm else storm_fault.vm
        entries: list[HistoryEntry] = []
        try:
            if vm is None or vm.removed_at is not None:
                raise NotFound(f"VM {name!r} does not exist any more")
            await self._faults.set(_fault_spec(storm_fault, vm), who=f"storm {storm.id}")
        except Rejected as error:
            text = f"storm {storm.id} skipped {storm_fault.kind} for {name}: {full_message(error)}"
            entries.append(self._history_entry(storm.set_by, text))
        await self._advance_storm(storm, entries)

    async def _advance_storm(self, storm: FaultStorm, entries: list[HistoryEntry]) -> None:
        advanced = replace(storm, gone=storm.gone + 1)
        if advanced.next_at is None:
            entries.append(self._history_entry(storm.set_by, f"storm {storm.id} is over: its last fault is set"))
        async with self._registry.write_lock:
            active = self._registry.active
            storms = tuple(advanced if s.id == storm.id else s for s in active.storms)
            left = tuple(each for each in storms if each.next_at is not None)
            await self._registry.save(replace(active, storms=left), entries)

    def _storm_targets(self, vms: Sequence[Vm]) -> list[StormTarget]:
        sizes = {scope_id: len(self._store.vms(scope_id=scope_id)) for scope_id in {vm.scope_id for vm in vms}}
        return [StormTarget(vm=vm.key, has_neighbour=sizes[vm.scope_id] > 1) for vm in vms]

    def _history_entry(self, who: str, text: str) -> HistoryEntry:
        return HistoryEntry(at=self._now(), kind=EntryKind.FAULT, actor=who, text=text)

    def _now(self) -> float:
        return self._transactions.clock.now()


def _fault_spec(storm_fault: StormFault, vm: Vm) -> FaultSpec:
    target = FaultTarget(name=vm.name, vm=vm)
    return FaultSpec(
        kind=storm_fault.kind,
        target=target,
        count=storm_fault.count,
        duration_s=storm_fault.duration_s,
        parameters=storm_fault.parameters,
    )
