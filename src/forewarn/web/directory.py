"""An in-memory index of VM names and of the VMs in each Azure resource, updated from commits.

It lets a request find a VM or list a page of a group without reading the whole fleet from the store.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from sys import intern
from typing import NamedTuple

from forewarn.core.fleet import PowerState, Vm
from forewarn.core.resource_ids import (
    availability_set_resource_id,
    group_resource_id,
    scale_set_resource_id,
    vm_resource_id,
)
from forewarn.errors import NotFound, Refused, Remedy
from forewarn.store.interface import AppliedCommit, Store

_DIGITS = re.compile(r"([0-9]+)")
NaturalSortKey = tuple[list[str | int], str]  # in a list


class IndexedVm(NamedTuple):
    """What a list must know of a VM before it reads it."""

    key: str
    resource: str
    is_standalone: bool  # no instance of a scale set or of a cloud service: listed among the VMs


class ResourceIndex:
    def __init__(self) -> None:
        self._vms_by_resource: dict[str, dict[str, IndexedVm]] = defaultdict(
            dict
        )  # resource → VMs in it, by their keys
        self._sorted_vms: dict[str, list[IndexedVm]] = {}  # of those resources that were listed, until they change
        self._parents_by_key: dict[str, tuple[str, ...]] = {}  # key → the resources that the VM is in, as declared
        self._sets_by_parent: dict[str, dict[str, str]] = defaultdict(dict)  # subscription or group → its sets
        self._groups: dict[str, str] = {}

    def update(self, vm: Vm) -> None:
        above = _parents_of(vm)
        listed = IndexedVm(vm.key, vm_resource_id(vm), not (vm.scale_set or vm.cloud_service))
        is_known = (
            self._parents_by_key.get(vm.key) == above and self._vms_by_resource[above[0].casefold()][vm.key] == listed
        )
        if is_known and vm.removed_at is None:
            return
        self._remove(vm.key)
        if vm.removed_at is None:
            self._add(listed, above)

    def _add(self, listed: IndexedVm, above: tuple[str, ...]) -> None:
        subscription, group, *sets = above
        self._parents_by_key[listed.key] = above
        self._groups.setdefault(group.casefold(), group)
        for resource in map(str.casefold, above):
            self._vms_by_resource[resource][listed.key] = listed
            self._sorted_vms.pop(resource, None)
        for one in sets:
            for place in (subscription, group):
                self._sets_by_parent[place.casefold()].setdefault(one.casefold(), one)

    def vms_within(self, resource: str) -> Sequence[IndexedVm]:
        wanted = resource.casefold()
        if wanted not in self._vms_by_resource:
            return []
        if wanted not in self._sorted_vms:
            self._sorted_vms[wanted] = sorted(
                self._vms_by_resource[wanted].values(), key=lambda listed: natural_sort_key(listed.key)
            )
        return self._sorted_vms[wanted]

    def has_vms_in(self, resource: str) -> bool:
        return resource.casefold() in self._vms_by_resource

    def sets_within(self, resource: str) -> list[str]:
        return sorted(self._sets_by_parent.get(resource.casefold(), {}).values(), key=natural_sort_key)

    def groups(self) -> list[str]:
        return sorted(self._groups.values(), key=natural_sort_key)

    def _remove(self, key: str) -> None:
        """What nothing lies in any more does not exist any more."""
        above = self._parents_by_key.pop(key, ())
        for resource in map(str.casefold, above):
            del self._vms_by_resource[resource][key]
            self._sorted_vms.pop(resource, None)
        for resource in map(str.casefold, above):
            if not self._vms_by_resource[resource]:
                self._remove_resource(resource, above)

    def _remove_resource(self, resource: str, above: tuple[str, ...]) -> None:
        del self._vms_by_resource[resource]
        self._groups.pop(resource, None)
        self._sets_by_parent.pop(resource, None)
        for place in above[:2]:
            self._sets_by_parent.get(place.casefold(), {}).pop(resource, None)


def natural_sort_key(text: str) -> NaturalSortKey:
    """What lists are sorted by: without case, and `pool_2` before `pool_10`. No two texts are at one place."""
    parts = _DIGITS.split(text.casefold())
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], text


def _parents_of(vm: Vm) -> tuple[str, ...]:
    """Its subscription, its group, and its set if it has one. Many VMs share each, so each text is kept once."""
    group = group_resource_id(vm.subscription_id, vm.resource_group)
    return tuple(map(intern, (f"/subscriptions/{vm.subscription_id}", group, *_sets_of(vm))))


def _sets_of(vm: Vm) -> tuple[str, ...]:
    if vm.cloud_service:
        return ()
    if vm.scale_set:
        return (scale_set_resource_id(vm),)
    return (availability_set_resource_id(vm),) if vm.availability_set else ()


_MAX_NAMES_TO_SUGGEST = 5_000
_MAX_NAME_LENGTH = 200  # characters: nothing is called so
VmPredicate = Callable[[Vm], bool]


def any_vm(vm: Vm) -> bool:
    return True


class FleetDirectory:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._keys: dict[str, set[str]] = defaultdict(set)  # name → keys of present VMs
        self._removed_keys: dict[str, set[str]] = defaultdict(set)  # name → keys of removed VMs
        self._vm_count_by_group: Counter[tuple[str, str]] = Counter()  # subscription and resource group → VMs there
        self._group_by_key: dict[str, tuple[str, str]] = {}
        self._power_if_not_running: dict[str, PowerState] = {}  # of those present VMs that are not running
        self._index = ResourceIndex()
        for vm in store.vms(removed=True):
            self._update(vm)
        self.close = store.subscribe(self._on_commit)

    def find(self, name: str, sees: VmPredicate = any_vm) -> Vm:
        """The VM by its name, `group/name` or key, wherever that is unambiguous among those that are seen."""
        found = self._matching(name, self._keys, sees)
        if not found and self._matching(name, self._removed_keys, sees):
            raise NotFound(f"VM {name!r} was removed", Remedy.EXPLAIN_REMOVED_VM, vm=name)
        return self._require_one(name, found, sees)

    def find_any(self, name: str, sees: VmPredicate = any_vm) -> Vm:
        """As `find`, and where there is none now, one that was removed."""
        return self._require_one(
            name, self._matching(name, self._keys, sees) or self._matching(name, self._removed_keys, sees), sees
        )

    def find_all_named(self, name: str) -> list[Vm]:
        """Every VM of that name in any group, present or removed."""
        wanted = name.casefold()
        keys = {*self._keys.get(wanted, ()), *self._removed_keys.get(wanted, ())}
        return [vm for vm in map(self.store.vm, sorted(keys)) if vm is not None]

    def keys(self) -> list[str]:
        """Of all present VMs."""
        return list(self._group_by_key)

    def has(self, key: str) -> bool:
        """Whether a VM has this key now."""
        return key in self._group_by_key

    def power_of(self, key: str) -> PowerState:
        return self._power_if_not_running.get(key, PowerState.RUNNING)

    def stopped_keys(self) -> list[str]:
        """The keys of the VMs that are not running."""
        return list(self._power_if_not_running)

    def most_common_group(self) -> tuple[str, str] | None:
        """The subscription and resource group that most VMs are in."""
        common = self._vm_count_by_group.most_common(1)
        return common[0][0] if common else None

    def subscriptions(self) -> set[str]:
        return {subscription for (subscription, _), count in self._vm_count_by_group.items() if count}

    def vms_within(self, resource: str) -> Sequence[IndexedVm]:
        """The present VMs of a subscription, resource group, scale set or availability set, in the order of lists."""
        return self._index.vms_within(resource)

    def has_vms_in(self, resource: str) -> bool:
        """Whether any VM lies within: what none lies within does not exist."""
        return self._index.has_vms_in(resource)

    def sets_within(self, resource: str) -> list[str]:
        """The ids of the sets of both sorts that a subscription or resource group has."""
        return self._index.sets_within(resource)

    def groups(self) -> list[str]:
        return self._index.groups()

    def _require_one(self, name: str, found: list[Vm], sees: VmPredicate) -> Vm:
        if not found:
            meant = self._suggestion(name, sees)
            raise NotFound(f"VM {name!r} does not exist{meant}", Remedy.LIST_VMS)
        if len(found) > 1:
            raise Refused(f"VM {name!r} is ambiguous: say {' or '.join(_distinct_names(found)[:4])}")
        return found[0]

    def _suggestion(self, name: str, sees: VmPredicate) -> str:
        """The name that was probably meant; not looked for in a fleet where that would take long."""
        known = self._keys if len(self._keys) <= _MAX_NAMES_TO_SUGGEST and len(name) <= _MAX_NAME_LENGTH else {}
        close = get_close_matches(name.strip().casefold(), known, n=1, cutoff=0.75)
        vm = self.store.vm(min(known[close[0]])) if close else None
        return f": did you mean {vm.name!r}?" if vm is not None and sees(vm) else ""

    def _matching(self, name: str, keys: dict[str, set[str]], sees: VmPredicate) -> list[Vm]:
        wanted = name.strip().strip("/").casefold()
        alike = keys.get(wanted.rpartition("/")[2], set())
        meant = sorted(key for key in alike if key == wanted or key.endswith(f"/{wanted}"))
        return [vm for vm in map(self.store.vm, meant) if vm is not None and sees(vm)]

    def _on_commit(self, committed: AppliedCommit) -> None:
        for vm in committed.commit.vms:
            self._update(vm)

    def _update(self, vm: Vm) -> None:
        name, key = vm.name.casefold(), vm.key
        present, other = (self._keys, self._removed_keys) if vm.removed_at is None else (self._removed_keys, self._keys)
        other[name].discard(key)
        if not other[name]:
            del other[name]
        present[name].add(key)
        self._index.update(vm)
        if vm.power is PowerState.RUNNING or vm.removed_at is not None:
            self._power_if_not_running.pop(key, None)
        else:
            self._power_if_not_running[key] = vm.power
        self._update_group(key, (vm.subscription_id, vm.resource_group) if vm.removed_at is None else None)

    def _update_group(self, key: str, home: tuple[str, str] | None) -> None:
        if (old := self._group_by_key.pop(key, None)) is not None:
            self._vm_count_by_group[old] -= 1
        if home is not None:
            self._group_by_key[key] = home
            self._vm_count_by_group[home] += 1


def _distinct_names(vms: list[Vm]) -> list[str]:
    short = [f"{vm.resource_group}/{vm.name}" for vm in vms]
    return short if len(set(map(str.casefold, short))) == len(vms) else [vm.key for vm in vms]
