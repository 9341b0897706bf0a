"""In-memory index of VMs per host, updated by commits. A moving VM counts on its destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from forewarn.core.event import Act, Event, EventState
from forewarn.core.fleet import Host, HostHealth, Vm, is_single_vm_scope
from forewarn.core.host_failure import needs_failed_host
from forewarn.core.placement import NO_HINTS, DestinationHints, Domains, choose_destination, no_destination_problem
from forewarn.store.interface import AppliedCommit, Store

T = TypeVar("T")


class PlacementIndex:
    """Knows the hosts, counts VMs and update domains per host, and chooses destinations; in memory.

    It is as new as the last commit passed to `on_commit`. A VM that moves counts on its destination.
    """

    def __init__(self, store: Store) -> None:
        self._hosts: dict[str, Host] = {host.name: host for host in store.hosts()}
        self._vms: dict[str, tuple[str, int, int]] = {}  # key → scope, update domain, fault domain
        self._sizes: dict[str, tuple[str, str]] = {}  # key → name and size
        self._current_hosts: dict[str, str] = {}  # key → host, as stored
        self._destinations: dict[str, dict[str, str]] = {}  # key → unfinished act → its destination host
        self._counted_hosts: dict[str, str] = {}  # key → the host where it counts
        self._vm_counts: Counter[str] = Counter()
        self._arriving: dict[str, set[str]] = {}  # host → VMs that count there and are not on it
        # (host, scope) → VMs per update and fault domain; without scopes of a single VM, which has no other VM
        self._domains: dict[tuple[str, str], Counter[Domains]] = {}
        self._work: dict[str, set[str]] = {}  # host → live events that are maintenance of it
        self._failed_hosts = self._find_failed_hosts()
        self._unreachable_hosts = self._find_unreachable_hosts()
        for event in store.events(statuses=[EventState.SCHEDULED, EventState.STARTED]):
            self._track_event(event)
        for vm in store.vms():  # after the events: so each VM is counted once, where it moves to
            self._track_vm(vm)

    def on_commit(self, applied: AppliedCommit) -> None:
        """Update the index with the hosts, VMs and events of a commit. Called for every commit, in order."""
        commit = applied.commit
        for host in commit.hosts:
            # The commit has the version that it was decided on; the store has added one.
            self._hosts[host.name] = replace(host, version=host.version + 1)
        for host in commit.removed_hosts:
            self._hosts.pop(host.name, None)
        for host in commit.destinations:
            here = self._hosts[host.name]
            # Of the host as it is known here, since the commit carries it as the decision saw it.
            self._hosts[host.name] = replace(here, arrivals=here.arrivals + 1)
        if commit.hosts or commit.removed_hosts:
            self._failed_hosts = self._find_failed_hosts()
            self._unreachable_hosts = self._find_unreachable_hosts()
        for vm in commit.vms:
            self._track_vm(vm)
        for event in commit.events:
            self._track_event(event)

    def vm_count(self, host: str) -> int:
        return self._vm_counts[host]

    def vm_keys(self) -> list[str]:
        """Return the keys of all present VMs, those added first at the beginning."""
        return list(self._vms)

    def has_vm(self, key: str) -> bool:
        """Return whether a present (not removed) VM has exactly this key."""
        return key in self._vms

    def scope_of(self, key: str) -> str:
        """Return the scope id of a present VM; KeyError for any other key."""
        return self._vms[key][0]

    def host_of(self, key: str) -> str:
        """Return the name of the host that a VM (key) is on; "" if it is on none, removed or unknown."""
        return self._current_hosts.get(key, "")

    def domains_on(self, host: str, scope_id: str) -> Collection[Domains]:
        return self._domains.get((host, scope_id), ())

    def most_update_domains(self) -> dict[str, int]:
        """Return for each host with VMs, by name, how many update domains of one scope are on it at most."""
        most = {host: 1 for host, count in self._vm_counts.items() if count}
        for (host, _), domains in self._domains.items():
            most[host] = max(most.get(host, 1), len({update_domain for update_domain, _ in domains}))
        return most

    def arriving_vms(self, host: str) -> list[tuple[str, str]]:
        return [self._sizes[key] for key in self._arriving.get(host, ())]

    def has_announced_work(self, host: str) -> bool:
        return bool(self._work.get(host))

    def vms_moving_to(self, host: str) -> list[str]:
        """Return the keys of the VMs with an unfinished act that brings them to this host, unordered."""
        return [key for key, bound in self._destinations.items() if host in bound.values()]

    def host(self, name: str) -> Host | None:
        """Return the host with exactly this name, as of the last commit, or None."""
        return self._hosts.get(name)

    def failed_hosts(self) -> frozenset[str]:
        """Return the names of the hosts whose health is FAILED; degraded ones are not among them."""
        return self._failed_hosts

    def unreachable_hosts(self) -> frozenset[str]:
        """Return the names of the hosts that are recorded as not answering (`Host.unreachable_since`)."""
        return self._unreachable_hosts

    def is_confirmed_down(self, host_name: str) -> bool:
        """Return whether an operator has stated that the host with exactly this name is certainly down."""
        host = self._hosts.get(host_name)
        return host is not None and host.confirmed_down

    def needs_failed_host(self, act: Act) -> bool:
        """Return whether an act cannot be performed because a host that it needs has failed."""
        return bool(self._failed_hosts) and needs_failed_host(act, self.host_of(act.vm), self._failed_hosts)

    def hosts(self) -> list[Host]:
        """Return all hosts as of the last commit, in a new list, in no particular order."""
        return list(self._hosts.values())

    def find_destination(self, vm: Vm, hints: DestinationHints = NO_HINTS, *, is_live: bool = False) -> str | None:
        """Return the name of the host that this VM would move to now, or None if no host can take it."""
        return choose_destination(vm, self._hosts.values(), self, hints, is_live=is_live)

    def destination_problem(self, vm: Vm) -> str:
        """Return for people why `find_destination` has found no host for this VM; only call it then."""
        return no_destination_problem(vm, self._hosts.values())

    @contextmanager
    def reserve_destinations(
        self, vms: Iterable[Vm], hints: DestinationHints = NO_HINTS, *, live: Collection[str] = ()
    ) -> Iterator[dict[str, str]]:
        """Choose a destination for each VM, one after the other, and count the VM there within the block."""
        # So concurrent moves spread out. A VM that no host can take has no entry. Commits nothing.
        destinations: dict[str, str] = {}
        try:
            for vm in vms:
                if (host := self.find_destination(vm, hints, is_live=vm.key in live)) is not None:
                    destinations[vm.key] = host
                    # Counted there at once: the next VM of this decision, and decisions beside it, choose others.
                    self._set_counted_host(vm.key, host)
            yield destinations
        finally:
            for key in destinations:
                self._recount_vm(key)

    def _find_failed_hosts(self) -> frozenset[str]:
        return frozenset(host.name for host in self._hosts.values() if host.health is HostHealth.FAILED)

    def _find_unreachable_hosts(self) -> frozenset[str]:
        return frozenset(host.name for host in self._hosts.values() if host.unreachable_since is not None)

    def _track_event(self, event: Event) -> None:
        self._track_work(event)
        for act in event.acts:
            self._track_act(act)

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
        # With its old scope and domains, before these are replaced.
        self._set_counted_host(key, "")
        if vm.removed_at is not None:
            self._vms.pop(key, None)
            self._sizes.pop(key, None)
            self._current_hosts.pop(key, None)
            return
        self._vms[key] = (vm.scope_id, vm.update_domain, vm.fault_domain)
        self._sizes[key] = (vm.name, vm.size)
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
        destinations = self._destinations.get(key)
        # The latest of its moves says where it will be.
        host = [*destinations.values()][-1] if destinations else self._current_hosts.get(key, "")
        self._set_counted_host(key, host)

    def _set_counted_host(self, key: str, host: str) -> None:
        if old := self._counted_hosts.pop(key, ""):
            self._add_to_count(key, old, -1)
            self._forget_arrival(key, old)
        if host and key in self._vms:
            self._counted_hosts[key] = host
            self._add_to_count(key, host, +1)
            if host != self._current_hosts.get(key):
                self._arriving.setdefault(host, set()).add(key)

    def _forget_arrival(self, key: str, host: str) -> None:
        if (arriving := self._arriving.get(host)) is not None:
            arriving.discard(key)
            if not arriving:
                del self._arriving[host]

    def _add_to_count(self, key: str, host: str, by: int) -> None:
        _add(self._vm_counts, host, by)
        scope_id, update_domain, fault_domain = self._vms[key]
        if is_single_vm_scope(scope_id):
            return
        domains = self._domains.setdefault((host, scope_id), Counter())
        _add(domains, (update_domain, fault_domain), by)
        if not domains:
            del self._domains[host, scope_id]


def _add(counts: Counter[T], key: T, by: int) -> None:
    total = counts[key] + by
    if total:
        counts[key] = total
    else:
        del counts[key]
