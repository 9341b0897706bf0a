"""Who is on which host, kept in memory from what is committed; VMs on their way count where they are going."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from forewarn.core.event import Act, Status
from forewarn.core.fleet import Host, Vm, destination_for
from forewarn.store.seam import Committed, Store


class Placement:
    def __init__(self, store: Store) -> None:
        self._hosts: dict[str, Host] = {host.name: host for host in store.hosts()}
        self._vms: dict[str, tuple[str, int]] = {}  # key → scope, update domain
        self._homes: dict[str, str] = {}  # key → the host it is on
        self._bound: dict[str, dict[str, str]] = {}  # key → owed act → the host that it leads to
        self._where: dict[str, str] = {}  # key → the host it is counted on
        self._crowd: Counter[str] = Counter()
        self._domains: dict[tuple[str, str], Counter[int]] = {}  # host, scope → update domains there
        for vm in store.vms():
            self._meet(vm)
        for event in store.events(statuses=[Status.STARTED]):
            for act in event.acts:
                self._follow(act)

    def hear(self, committed: Committed) -> None:
        commit = committed.commit
        for host in commit.hosts:
            self._hosts[host.name] = host
        for name in commit.removed_hosts:
            self._hosts.pop(name, None)
        for vm in commit.vms:
            self._meet(vm)
        for event in commit.events:
            for act in event.acts:
                self._follow(act)

    def crowd(self, host: str) -> int:
        return self._crowd[host]

    def keys(self) -> list[str]:
        """Of every VM in the order they came; of those that were removed too."""
        return list(self._vms)

    def scope_of(self, key: str) -> str:
        return self._vms[key][0]

    def home_of(self, key: str) -> str:
        """The host that a VM is on; "" where it is on none, or nowhere any more."""
        return self._homes.get(key, "")

    def mixes(self, host: str, vm: Vm) -> bool:
        return any(domain != vm.update_domain for domain in self._domains.get((host, vm.scope_id), ()))

    def bound_for(self, host: str) -> list[str]:
        """The keys of the VMs on their way to this host."""
        return [key for key, bound in self._bound.items() if host in bound.values()]

    def hosts(self) -> list[Host]:
        return list(self._hosts.values())

    def destination(self, vm: Vm) -> str | None:
        """Where this VM would go now."""
        return destination_for(vm, self._hosts.values(), self)

    def claim(self, vm: Vm) -> str | None:
        """Where this VM goes: it counts there at once, so that moves decided side by side spread over the hosts.

        What the store says of the VM next settles it; a decision that came to nothing gives it back.
        """
        host = self.destination(vm)
        if host is not None:
            self._put(vm.key, host)
        return host

    def give_back(self, vms: Iterable[Vm]) -> None:
        """Nothing came of a decision: these VMs count where the store has them."""
        for vm in vms:
            self._seat(vm.key)

    def _meet(self, vm: Vm) -> None:
        key = vm.key
        self._put(key, "")
        self._vms[key] = (vm.scope_id, vm.update_domain)
        self._homes[key] = vm.host if vm.removed_at is None else ""
        self._seat(key)

    def _follow(self, act: Act) -> None:
        bound = self._bound.setdefault(act.vm, {})
        if act.to_host and act.outcome is None:
            bound[act.id] = act.to_host
        else:
            bound.pop(act.id, None)
        if not bound:
            del self._bound[act.vm]
        self._seat(act.vm)

    def _seat(self, key: str) -> None:
        ways = list(self._bound.get(key, {}).values())
        self._put(key, ways[-1] if ways else self._homes.get(key, ""))

    def _put(self, key: str, host: str) -> None:
        if old := self._where.pop(key, ""):
            self._count(key, old, -1)
        if host and key in self._vms:
            self._where[key] = host
            self._count(key, host, +1)

    def _count(self, key: str, host: str, by: int) -> None:
        scope_id, domain = self._vms[key]
        self._crowd[host] += by
        domains = self._domains.setdefault((host, scope_id), Counter())
        domains[domain] += by
        if domains[domain] <= 0:
            del domains[domain]
