"""The facts that a host node shows, and the rule that it never goes back to an older state of a scope.

Without I/O. A fact about a scope replaces an earlier one only if its (epoch, version) is not older than any that the
node has shown of that scope, however it arrived: by the stream, with a complete state, or with the reply to a call.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from forewarn.cluster.messages import HostFact, HostScope
from forewarn.metadata.workers.messages import FaultsUpdate


class HostFacts:
    """The scopes and faults that a host node shows its VMs, in memory; empty at first."""

    def __init__(self) -> None:
        self.scopes: dict[str, HostScope] = {}
        self.faults = FaultsUpdate(())
        # Scope id → epoch and version of the newest fact, also of scopes that left; then whether it left unnoticed.
        self._newest: dict[str, tuple[int, int, bool]] = {}

    @property
    def vm_keys(self) -> list[str]:
        """The keys of the VMs on this host or on their way to it, in a new list, in no particular order."""
        return [vm for scope in self.scopes.values() for vm in scope.update.vms]

    def apply(self, facts: Iterable[HostFact]) -> list[HostFact]:
        """Take over these facts, and return those that change what VMs are shown, in the given order."""
        return [fact for fact in facts if self._take(fact)]

    def install(self, facts: Iterable[HostFact]) -> list[HostFact]:
        """Take over a complete state: scopes that are not in it leave this host. Return what changes."""
        facts = tuple(facts)
        named = {fact.update.scope_id for fact in facts if isinstance(fact, HostScope)}
        left = [_without_vms(scope) for scope_id, scope in self.scopes.items() if scope_id not in named]
        changes = self.apply([*left, *facts])
        for scope in left:  # it left with a version that is not known: a late fact of the known one is too old
            self._newest[scope.update.scope_id] = (*scope.order, True)
        return changes

    def _take(self, fact: HostFact) -> bool:
        if isinstance(fact, FaultsUpdate):
            changed, self.faults = fact != self.faults, fact
            return changed
        scope_id = fact.update.scope_id
        shown = self.scopes.get(scope_id)
        order = (*fact.order, False)
        if order < self._newest.get(scope_id, order):
            return False
        self._newest[scope_id] = order
        if fact.update.vms:
            self.scopes[scope_id] = fact
        else:
            self.scopes.pop(scope_id, None)
        return fact != shown and (shown is not None or bool(fact.update.vms))


def _without_vms(scope: HostScope) -> HostScope:
    return replace(scope, update=replace(scope.update, vms={}), addresses={})
