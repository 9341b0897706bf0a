"""Use cases for faults: set and clear them, record the requests they hit, remove expired ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from forewarn.base.duration import exact_duration_text
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
    check_parameters,
    fault_duration_s,
)
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.planning import apply_planned_event
from forewarn.core.request import PlannedEvent
from forewarn.core.scope import Scope
from forewarn.errors import Refused, Remedy

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
        """Return when the next event fault expires in lab time, perhaps past; None if none has a time limit."""
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
