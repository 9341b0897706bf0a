"""Use cases of the VMs themselves: their first request enables the scope, and they approve events."""

from __future__ import annotations

from forewarn.control.desk import Desk
from forewarn.control.replays import Replays
from forewarn.control.requests import approving
from forewarn.core.enablement import enable
from forewarn.core.fleet import Vm
from forewarn.core.lifecycle import awaits_approval
from forewarn.core.policy import Around
from forewarn.core.scope import Scope
from forewarn.errors import NotFound


class Guests:
    def __init__(self, desk: Desk, replays: Replays) -> None:
        self._desk = desk
        self._replays = replays
        self._store = desk.store

    async def enable(self, vm_key: str) -> None:
        """Spec §8.1: the first request of any VM of a scope enables it, durably."""
        vm = self._vm(vm_key)

        def decision(scope: Scope, around: Around) -> Scope:
            return enable(scope, by=vm.name, now=around.now)

        await self._desk.decide(vm.scope_id, decision)

    async def approve(self, vm_key: str, event_ids: tuple[str, ...]) -> str | None:
        """Spec §5: durable on return. The first id that was never an event of this scope: then nothing took effect."""
        vm = self._vm(vm_key)
        scope = self._desk.scope(vm.scope_id)
        for event_id in event_ids:
            if not self._is_known(scope, event_id):
                return event_id

        if self._is_settled(scope, event_ids, vm.name):
            return None

        def decision(scope: Scope, around: Around) -> Scope:
            noted = self._replays.approvals(scope, event_ids, by=vm.name, now=around.now)
            return approving(event_ids, vm.name)(scope, around).saying(*noted)

        await self._desk.decide(vm.scope_id, decision)
        return None

    def _is_settled(self, scope: Scope, event_ids: tuple[str, ...], by: str) -> bool:
        """Whether nothing would change: what the store says of this is durable, and never becomes otherwise."""
        if any(awaits_approval(event) for event in scope.events if event.id in event_ids):
            return False
        return not any(self._replays.approvals(scope, event_ids, by=by, now=self._desk.clock.now()))

    def _is_known(self, scope: Scope, event_id: str) -> bool:
        if not event_id.isascii():
            return False  # half a character too, which no store can look for
        live = scope.event(event_id)
        event = live or self._store.event(event_id)
        if event is None:
            return self._replays.knows(scope.id, event_id)
        return event.scope_id == scope.id and event.listed

    def _vm(self, vm_key: str) -> Vm:
        vm = self._store.vm(vm_key)
        if vm is None or vm.removed_at is not None:
            raise NotFound(f"VM {vm_key!r} does not exist")
        return vm
