"""Who is called what: names of VMs, kept in memory from what is committed, so that no call reads the whole fleet."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from forewarn.console.register import Listed, Register
from forewarn.core.fleet import Power, Vm
from forewarn.errors import NotFound, Refused
from forewarn.store.seam import Committed, Store

_FEW = 5_000
_LONG = 200  # characters: nothing is called so
Sees = Callable[[Vm], bool]


def everyone(vm: Vm) -> bool:
    return True


class Directory:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._keys: dict[str, set[str]] = defaultdict(set)  # name → keys of present VMs
        self._gone: dict[str, set[str]] = defaultdict(set)  # name → keys of removed VMs
        self._homes: Counter[tuple[str, str]] = Counter()  # subscription and resource group → VMs there
        self._home_of: dict[str, tuple[str, str]] = {}
        self._off: dict[str, Power] = {}  # of those present VMs that are not running
        self._register = Register()
        for vm in store.vms(removed=True):
            self._meet(vm)
        self.close = store.subscribe(self._hear)

    def find(self, name: str, sees: Sees = everyone) -> Vm:
        """The VM by its name, `group/name` or key, wherever that is unambiguous among those that are seen."""
        found = self._matching(name, self._keys, sees)
        if not found and self._matching(name, self._gone, sees):
            raise NotFound(f"VM {name!r} was removed: `forewarn explain {name}` tells when and why")
        return self._one(name, found, sees)

    def find_any(self, name: str, sees: Sees = everyone) -> Vm:
        """As `find`, and where there is none now, one that was removed."""
        return self._one(name, self._matching(name, self._keys, sees) or self._matching(name, self._gone, sees), sees)

    def called(self, name: str) -> list[Vm]:
        """Every VM of that name in any group, present or removed."""
        wanted = name.casefold()
        keys = {*self._keys.get(wanted, ()), *self._gone.get(wanted, ())}
        return [vm for vm in map(self.store.vm, sorted(keys)) if vm is not None]

    def keys(self) -> list[str]:
        """Of all present VMs."""
        return list(self._home_of)

    def has(self, key: str) -> bool:
        """Whether a VM has this key now."""
        return key in self._home_of

    def power_of(self, key: str) -> Power:
        return self._off.get(key, Power.RUNNING)

    def off(self) -> list[str]:
        """The keys of the VMs that are not running."""
        return list(self._off)

    def commonest_home(self) -> tuple[str, str] | None:
        """The subscription and resource group that most VMs are in."""
        common = self._homes.most_common(1)
        return common[0][0] if common else None

    def subscriptions(self) -> set[str]:
        return {subscription for (subscription, _), count in self._homes.items() if count}

    def within(self, resource: str) -> Sequence[Listed]:
        """The present VMs of a subscription, resource group, scale set or availability set, in the order of lists."""
        return self._register.within(resource)

    def holds(self, resource: str) -> bool:
        """Whether any VM lies within: what none lies within does not exist."""
        return self._register.holds(resource)

    def sets_within(self, resource: str) -> list[str]:
        """The ids of the sets of both sorts that a subscription or resource group has."""
        return self._register.sets_within(resource)

    def groups(self) -> list[str]:
        return self._register.groups()

    def _one(self, name: str, found: list[Vm], sees: Sees) -> Vm:
        if not found:
            meant = self._meant(name, sees)
            raise NotFound(f"VM {name!r} does not exist: {meant}`forewarn fleet show` lists the VMs")
        if len(found) > 1:
            raise Refused(f"VM {name!r} is ambiguous: say {' or '.join(_told_apart(found)[:4])}")
        return found[0]

    def _meant(self, name: str, sees: Sees) -> str:
        """The name that was probably meant; not looked for in a fleet where that would take long."""
        known = self._keys if len(self._keys) <= _FEW and len(name) <= _LONG else {}
        close = get_close_matches(name.strip().casefold(), known, n=1, cutoff=0.75)
        vm = self.store.vm(min(known[close[0]])) if close else None
        return f"did you mean {vm.name!r}? " if vm is not None and sees(vm) else ""

    def _matching(self, name: str, keys: dict[str, set[str]], sees: Sees) -> list[Vm]:
        wanted = name.strip().strip("/").casefold()
        alike = keys.get(wanted.rpartition("/")[2], set())
        meant = sorted(key for key in alike if key == wanted or key.endswith(f"/{wanted}"))
        return [vm for vm in map(self.store.vm, meant) if vm is not None and sees(vm)]

    def _hear(self, committed: Committed) -> None:
        for vm in committed.commit.vms:
            self._meet(vm)

    def _meet(self, vm: Vm) -> None:
        name, key = vm.name.casefold(), vm.key
        present, other = (self._keys, self._gone) if vm.removed_at is None else (self._gone, self._keys)
        other[name].discard(key)
        if not other[name]:
            del other[name]
        present[name].add(key)
        self._register.meet(vm)
        if vm.power is Power.RUNNING or vm.removed_at is not None:
            self._off.pop(key, None)
        else:
            self._off[key] = vm.power
        self._settle(key, (vm.subscription_id, vm.resource_group) if vm.removed_at is None else None)

    def _settle(self, key: str, home: tuple[str, str] | None) -> None:
        if (old := self._home_of.pop(key, None)) is not None:
            self._homes[old] -= 1
        if home is not None:
            self._home_of[key] = home
            self._homes[home] += 1


def _told_apart(vms: list[Vm]) -> list[str]:
    short = [f"{vm.resource_group}/{vm.name}" for vm in vms]
    return short if len(set(map(str.casefold, short))) == len(vms) else [vm.key for vm in vms]
