"""Shows the facts of a host to its VMs: turns them into published scopes and places of a frontend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from forewarn.cluster.host_facts import HostFacts
from forewarn.cluster.messages import HostFact, HostScope
from forewarn.metadata import ListenerSpec
from forewarn.metadata.workers.frontend import MetadataFrontend
from forewarn.protocol.responses import service_unavailable

log = logging.getLogger(__name__)


class HostServer:
    """Keeps what a host node's frontend shows to VMs equal to the node's facts.

    Call `show_all` once the frontend is prepared, and `show` with every change of `facts` after that.
    """

    def __init__(self, frontend: MetadataFrontend, facts: HostFacts, listeners: Iterable[ListenerSpec]) -> None:
        self._frontend = frontend
        self._facts = facts
        self._named_places = tuple(assignment for spec in listeners for assignment in spec.assignments)
        self._addresses: dict[str, dict[str, str]] = {}  # scope id → VM key → source address
        self._ambiguous: set[str] = set()  # names that were warned about
        self._is_stale = False

    def show_all(self) -> None:
        """Show all facts: publish the scopes and faults, and record where their VMs call from."""
        self.show([*self._facts.scopes.values(), self._facts.faults])

    def show(self, changes: Iterable[HostFact]) -> None:
        """Show facts that have changed: publish them, and record where their VMs call from."""
        for fact in changes:
            if isinstance(fact, HostScope):
                self._show_scope(fact)
            else:
                self._frontend.set_faults(fact.faults)
        self._assign_named_places()

    def set_stale(self, is_stale: bool) -> None:
        """Answer polls with 503 (`is_stale` True), or with the documents again (False), from now on."""
        if is_stale != self._is_stale:
            self._is_stale = is_stale
            for scope in self._facts.scopes.values():
                self._show_scope(scope)

    def _show_scope(self, scope: HostScope) -> None:
        published = scope.update.to_published_scope()
        self._frontend.publish(replace(published, poll_override=service_unavailable()) if self._is_stale else published)
        callers, scope_id = self._frontend.callers, scope.update.scope_id
        for vm, address in self._addresses.get(scope_id, {}).items():
            if scope.addresses.get(vm) != address and callers.vm_at(address) == vm:
                callers.release(address)
        for vm, address in scope.addresses.items():
            callers.assign(address, vm)
        self._addresses[scope_id] = scope.addresses
        if not scope.addresses:
            del self._addresses[scope_id]

    def _assign_named_places(self) -> None:
        if not self._named_places:
            return
        find = _name_index(self._facts)
        for place, name in self._named_places:
            keys = find(name)
            if len(keys) == 1:
                self._frontend.callers.assign(place, keys[0])
                continue
            self._frontend.callers.release(place)
            if len(keys) > 1 and name not in self._ambiguous:
                self._ambiguous.add(name)
                log.warning("a listener is for VM %r, but %d VMs have that name: write group/name", name, len(keys))


def _name_index(facts: HostFacts) -> Callable[[str], list[str]]:
    keys: dict[str, list[str]] = {}
    for scope in facts.scopes.values():
        for key in scope.update.vms:
            _, group, name = key.split("/", 2)
            for alias in (key, f"{group}/{name}", name):
                keys.setdefault(alias, []).append(key)
    return lambda wanted: keys.get(wanted.casefold(), [])
