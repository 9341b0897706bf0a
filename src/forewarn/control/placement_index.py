"""In-memory index of VMs per host, updated by commits. A moving VM counts on its destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from forewarn.core.event import Act, Event, EventState
from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.core.host_failure import needs_failed_host
from forewarn.core.placement import choose_destination
from forewarn.store.interface import AppliedCommit, Store

T = TypeVar("T")


class PlacementIndex:
    """Knows the hosts, counts VMs and update domains per host, and chooses destinations.

    Reads the whole store once. It is as new as the last commit passed to `on_commit`. Names and keys must match
    exactly.
    """

    def __init__(self, store: Store) -> None:
        self._hosts: dict[str, Host] = {host.name: host for host in store.hosts()}
        self._vms: dict[str, tuple[str, int]] = {}  # key → scope, update domain
        self._current_hosts: dict[str, str] = {}  # key → host, as stored
        self._destinations: dict[str, dict[str, str]] = {}  # key → unfinished act → its destination host
        self._counted_hosts: dict[str, str] = {}  # key → the host where it counts
        self._vm_counts: Counter[str] = Counter()
        self._domains: dict[tuple[str, str], Counter[int]] = {}  # (host, scope) → VMs per update domain
        self._work: dict[str, set[str]] = {}  # host → live events that are maintenance of it
        self._failed_hosts = self._find_failed_hosts()
        for vm in store.vms():
            self._track_vm(vm)
        for event in store.events(statuses=[EventState.SCHEDULED, EventState.STARTED]):
            self._track_work(event)
            for act in event.acts:
                self._track_act(act)

    def on_commit(self, applied: AppliedCommit) -> None:
        """Update the index with the hosts, VMs and events of a commit. Called for every commit, in order."""
        commit = applied.commit
        for host in commit.hosts:
            self._hosts[host.name] = replace(host, version=host.version + 1)
        for host in commit.removed_hosts:
            self._hosts.pop(host.name, None)
        for host in commit.destinations:
            here = self._hosts[host.name]
            self._hosts[host.name] = replace(here, arrivals=here.arrivals + 1)
        if commit.hosts or commit.removed_hosts:
            self._failed_hosts = self._find_failed_hosts()
        for vm in commit.vms:
            self._track_vm(vm)
        for event in commit.events:
            self._track_work(event)
            for act in event.acts:
                self._track_act(act)

    def vm_count(self, host: str) -> int:
        """Return how many VMs are on this host or moving to it, without those moving away; 0 if unknown.

        Within `reserve_destinations` a VM counts on its chosen destination.
        """
        return self._vm_counts[host]

    def vm_keys(self) -> list[str]:
        """Return the keys of all present VMs, those added first at the beginning."""
        return list(self._vms)

    def scope_of(self, key: str) -> str:
        """Return the scope id of a present VM; KeyError for any other key."""
        return self._vms[key][0]

    def host_of(self, key: str) -> str:
        """Return the name of the host that a VM (key) is on; "" if it is on none, removed or unknown.

        While the VM moves, this is its old host.
        """
        return self._current_hosts.get(key, "")

    def has_other_update_domain(self, host: str, vm: Vm) -> bool:
        """Return whether a VM of the same scope but another update domain is on the host or moving to it."""
        return any(domain != vm.update_domain for domain in self._domains.get((host, vm.scope_id), ()))

    def has_announced_work(self, host: str) -> bool:
        """Return whether planned maintenance of this host is scheduled or started, that is, not over."""
        return bool(self._work.get(host))

    def vms_moving_to(self, host: str) -> list[str]:
        """Return the keys of the VMs with an unfinished act that moves them to this host, unordered."""
        return [key for key, bound in self._destinations.items() if host in bound.values()]

    def host(self, name: str) -> Host | None:
        """Return the host with exactly this name, as of the last commit, or None."""
        return self._hosts.get(name)

    def failed_hosts(self) -> frozenset[str]:
        """Return the names of the hosts whose health is FAILED; degraded ones are not among them."""
        return self._failed_hosts

    def needs_failed_host(self, act: Act) -> bool:
        """Return whether an act cannot be performed because a host that it needs has failed.

        It needs its destination and the host of its VM: `core.host_failure.needs_failed_host` has the rule.
        """
        return bool(self._failed_hosts) and needs_failed_host(act, self.host_of(act.vm), self._failed_hosts)

    def hosts(self) -> list[Host]:
        """Return all hosts as of the last commit, in no particular order."""
        return list(self._hosts.values())

    def find_destination(self, vm: Vm) -> str | None:
        """Return the name of the host that this VM would move to now, or None if no host can take it.

        `choose_destination` has the rules: another healthy host of its location and zone, preferably with few VMs.
        """
        return choose_destination(vm, self._hosts.values(), self)

    @contextmanager
    def reserve_destinations(self, vms: Iterable[Vm]) -> Iterator[dict[str, str]]:
        """Choose a destination for each VM, and count the VM there within the block.

        So concurrent moves spread out. Use it with `with`. Yields VM key → name of the host; a VM that no host can take
        has no entry. After the block a VM counts where the committed state has it.
        """
        destinations: dict[str, str] = {}
        try:
            for vm in vms:
                if (host := self.find_destination(vm)) is not None:
                    destinations[vm.key] = host
                    self._set_counted_host(vm.key, host)
            yield destinations
        finally:
            for key in destinations:
                self._recount_vm(key)

    def _find_failed_hosts(self) -> frozenset[str]:
        return frozenset(host.name for host in self._hosts.values() if host.health is HostHealth.FAILED)

    def _track_work(self, event: Event) -> None:
        if not (event.host and event.rules.planned):
            return
        if event.is_live:
            self._work.setdefault(event.host, set()).add(event.id)
        elif (live := self._work.get(event.host)) is not None:
            live.discard(event.id)
            if not live:
                del self._work[event.host]

    def _track_vm(self, vm: Vm) -> None:
        key = vm.key
        self._set_counted_host(key, "")
        if vm.removed_at is not None:
            self._vms.pop(key, None)
            self._current_hosts.pop(key, None)
            return
        self._vms[key] = (vm.scope_id, vm.update_domain)
        self._current_hosts[key] = vm.host
        self._recount_vm(key)

    def _track_act(self, act: Act) -> None:
        bound = self._destinations.setdefault(act.vm, {})
        if act.to_host and act.outcome is None:
            bound[act.id] = act.to_host
        else:
            bound.pop(act.id, None)
        if not bound:
            del self._destinations[act.vm]
        self._recount_vm(act.vm)

    def _recount_vm(self, key: str) -> None:
        destinations = list(self._destinations.get(key, {}).values())
        self._set_counted_host(key, destinations[-1] if destinations else self._current_hosts.get(key, ""))

    def _set_counted_host(self, key: str, host: str) -> None:
        if old := self._counted_hosts.pop(key, ""):
            self._add_to_count(key, old, -1)
        if host and key in self._vms:
            self._counted_hosts[key] = host
            self._add_to_count(key, host, +1)

    def _add_to_count(self, key: str, host: str, by: int) -> None:
        scope_id, domain = self._vms[key]
        domains = self._domains.setdefault((host, scope_id), Counter())
        _add(domains, domain, by)
        _add(self._vm_counts, host, by)
        if not domains:
            del self._domains[host, scope_id]


def _add(counts: Counter[T], key: T, by: int) -> None:
    """Add to a count, and forget it once it is 0."""
    counts[key] += by
    if not counts[key]:
        del counts[key]
