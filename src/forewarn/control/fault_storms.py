"""Use cases for fault storms: start and clear them, and set each fault when it is due in lab time.

A storm is a random schedule of faults that follows from its seed. It is saved, so it continues after a restart.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.control.fault_registry import FaultRegistry
from forewarn.control.faults import FaultService, FaultSpec, FaultTarget
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.core.fault_storm import StormTarget, plan_storm
from forewarn.core.faults import FaultStorm, StormFault
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.errors import NotFound, Refused, Rejected, Remedy, full_message

_MAX_DURATION_S = 24 * 3600.0


class FaultStormService:
    """Starts and clears fault storms, and sets their faults when they are due."""

    def __init__(self, *, transactions: ScopeTransactions, registry: FaultRegistry, faults: FaultService) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._registry = registry
        self._faults = faults

    async def start(self, seed: int, vms: Sequence[Vm], *, for_s: float, who: str) -> FaultStorm:
        """Schedule a storm of `for_s` seconds of lab time on these VMs, durably, and return it."""
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
        """Return when the next fault of any storm is due in lab time, perhaps past; None without storms."""
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
