"""Use cases of VMs: enable their scope with the first request, and approve events."""

from __future__ import annotations

from forewarn.control.replays import ReplayService
from forewarn.control.requests import approve_decision
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.core.decision import DecisionContext
from forewarn.core.fleet import Vm
from forewarn.core.lifecycle import awaits_approval
from forewarn.core.scope import Scope, enable_scope
from forewarn.errors import NotFound


class GuestService:
    """Handles requests from inside a VM, given by its key: enables its scope, and approves events for it."""

    def __init__(self, transactions: ScopeTransactions, replays: ReplayService) -> None:
        self._transactions = transactions
        self._replays = replays
        self._store = transactions.store

    async def enable_scope_of(self, vm_key: str) -> None:
        """Enable scheduled events for the VM's scope, durably (spec §8.1); an enabled scope stays as it is."""
        vm = self._vm(vm_key)

        def decision(scope: Scope, context: DecisionContext) -> Scope:
            return enable_scope(scope, by=vm.name, now=context.now)

        await self._transactions.run(vm.scope_id, decision)

    async def approve(self, vm_key: str, event_ids: tuple[str, ...]) -> str | None:
        """Approve events of the VM's scope durably (spec §5); return None, or the first id that is unknown."""
        vm = self._vm(vm_key)
        scope_id = vm.scope_id
        scope = self._transactions.load(scope_id)
        for event_id in event_ids:
            if not self._is_known(scope, event_id):
                return event_id

        # Clients approve with each poll: without this, every poll would be a commit.
        if self._changes_nothing(scope, event_ids, vm.name):
            return None

        def decision(scope: Scope, context: DecisionContext) -> Scope:
            entries = self._replays.approval_entries(scope, event_ids, by=vm.name, now=context.now)
            return approve_decision(event_ids, vm.name)(scope, context).with_entries(*entries)

        await self._transactions.run(scope_id, decision)
        return None

    def _changes_nothing(self, scope: Scope, event_ids: tuple[str, ...], by: str) -> bool:
        """Return whether the approval would change nothing, now and later: then no commit is needed."""
        if any(awaits_approval(event) for event in scope.events if event.id in event_ids):
            return False
        return not any(self._replays.approval_entries(scope, event_ids, by=by, now=self._transactions.clock.now()))

    def _is_known(self, scope: Scope, event_id: str) -> bool:
        if not event_id.isascii():
            return False  # a lone surrogate, for instance, cannot be looked up in a store
        live = scope.event(event_id)
        event = live or self._store.event(event_id)
        if event is None:
            return self._replays.was_shown(scope.id, event_id)
        # An id of another scope is as unknown as one that never existed.
        return event.scope_id == scope.id and event.listed

    def _vm(self, vm_key: str) -> Vm:
        vm = self._store.vm(vm_key)
        if vm is None or vm.removed_at is not None:
            raise NotFound(f"VM {vm_key!r} does not exist")
        return vm
