"""An in-memory index of VM names and of the VMs in each Azure resource, updated from commits.

It lets a request find a VM or list a page of a group without reading the whole fleet from the store.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from forewarn.base.wording import similar_names
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
NaturalSortKey = tuple[list[str | int], str]  # from natural_sort_key
VmPredicate = Callable[[Vm], bool]  # whether a caller may see the VM
_MAX_NAMES_TO_SUGGEST = 5_000  # in a larger fleet a search for similar names takes too long
_MAX_SIMILAR_NAMES = 3  # that are tried, if the VMs of the most similar one are not visible
_MAX_NAME_LENGTH = 200  # characters; no VM has a longer name
_MAX_VMS_AT_ONCE = 100  # VMs of a commit that are indexed before other work; takes a millisecond
_TURN_S = 0.005  # real time


class IndexedVm(NamedTuple):
    """A present VM (not removed) in the index: its key and resource id, without a read of the store."""

    key: str  # `subscription/group/name` in lower case
    resource: str  # its Azure resource id
    is_standalone: bool  # no instance of a uniform scale set or a cloud service, so ARM lists it as a VM


class ResourceIndex:
    """The VMs and sets of each subscription and resource group, and the VMs of each set, in memory."""

    def __init__(self) -> None:
        self._vms_by_resource: dict[str, dict[str, IndexedVm]] = {}  # resource, in lower case → its VMs by key
        self._sorted_vms: dict[str, list[IndexedVm]] = {}  # a cache of listed resources, dropped on a change
        self._parents_by_key: dict[str, _Parents] = {}  # VM key → resources that contain the VM
        self._sets_by_parent: dict[str, dict[str, str]] = defaultdict(dict)  # subscription or group → its sets
        self._groups: dict[str, str] = {}

    def update(self, vm: Vm) -> None:
        """Add or change this VM in the index, by its key; remove it if it has a `removed_at`. May be repeated."""
        key, parents = vm.key, _parents_of(vm)
        listed = IndexedVm(key, vm_resource_id(vm), not (vm.is_uniform_instance or vm.cloud_service))
        known_parents = self._parents_by_key.get(key)
        if known_parents is not None:
            is_listed = known_parents == parents and self._vms_by_resource[parents.keys[0]][key] == listed
            if is_listed and vm.removed_at is None:
                return
            self._remove(key, known_parents)
        if vm.removed_at is None:
            self._add(listed, parents)

    def _add(self, listed: IndexedVm, parents: _Parents) -> None:
        self._parents_by_key[listed.key] = parents
        for key, resource in zip(parents.keys, parents.resources, strict=True):
            if key not in self._vms_by_resource:
                self._add_resource(key, resource, parents)
            self._vms_by_resource[key][listed.key] = listed
            self._sorted_vms.pop(key, None)

    def _add_resource(self, key: str, resource: str, parents: _Parents) -> None:
        self._vms_by_resource[key] = {}
        subscription, group, *sets = parents.keys
        if key == group:
            self._groups[key] = resource
        elif key in sets:
            for parent in (subscription, group):
                self._sets_by_parent[parent][key] = resource

    def vms_within(self, resource: str) -> Sequence[IndexedVm]:
        """Return the present VMs of a resource in natural order of keys. Do not change the list: it is a cache."""
        wanted = resource.casefold()
        if wanted not in self._vms_by_resource:
            return []
        if wanted not in self._sorted_vms:
            self._sorted_vms[wanted] = sorted(
                self._vms_by_resource[wanted].values(), key=lambda listed: natural_sort_key(listed.key)
            )
        return self._sorted_vms[wanted]

    def has_vms_in(self, resource: str) -> bool:
        """Return whether a subscription, group or set has a present VM, that is, exists."""
        return resource.casefold() in self._vms_by_resource

    def sets_within(self, resource: str) -> list[str]:
        """Return the ids of the scale sets and availability sets of a subscription or group, in natural order."""
        return sorted(self._sets_by_parent.get(resource.casefold(), {}).values(), key=natural_sort_key)

    def groups(self) -> list[str]:
        """Return the Azure ids of all resource groups with a present VM, in natural order, in a new list."""
        return sorted(self._groups.values(), key=natural_sort_key)

    def _remove(self, key: str, parents: _Parents) -> None:
        del self._parents_by_key[key]
        for resource in parents.keys:
            del self._vms_by_resource[resource][key]
            self._sorted_vms.pop(resource, None)
            if not self._vms_by_resource[resource]:
                self._remove_resource(resource, parents)

    def _remove_resource(self, resource: str, parents: _Parents) -> None:
        del self._vms_by_resource[resource]
        self._groups.pop(resource, None)
        self._sets_by_parent.pop(resource, None)
        for parent in parents.keys[:2]:
            self._sets_by_parent.get(parent, {}).pop(resource, None)


def natural_sort_key(text: str) -> NaturalSortKey:
    """Return a sort key that ignores letter case and compares numbers by value: `pool_2` before `pool_10`."""
    parts = _DIGITS.split(text.casefold())
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], text


class _Parents(NamedTuple):
    """The subscription, the group and, if the VM is in one, the set of a VM; many VMs share them."""

    resources: tuple[str, ...]  # their resource ids, as the VM spells them
    keys: tuple[str, ...]  # the same in lower case


def _parents_of(vm: Vm) -> _Parents:
    return _parents(vm.subscription_id, vm.resource_group, *_sets_of(vm))


@lru_cache(maxsize=1024)  # consecutive VMs are often in the same group
def _parents(subscription_id: str, resource_group: str, *sets: str) -> _Parents:
    group = group_resource_id(subscription_id, resource_group)
    resources = tuple(map(intern, (f"/subscriptions/{subscription_id}", group, *sets)))
    return _Parents(resources, tuple(intern(resource.casefold()) for resource in resources))


def _sets_of(vm: Vm) -> tuple[str, ...]:
    if vm.cloud_service:
        return ()
    if vm.scale_set:
        return (scale_set_resource_id(vm),)
    return (availability_set_resource_id(vm),) if vm.availability_set else ()


def _any_vm(vm: Vm) -> bool:
    """Always true: the predicate for a caller who sees every VM."""
    return True


class _FleetIndex:
    """The VMs of the fleet by name, group, power state and Azure resource; only `removed_keys` has removed VMs."""

    def __init__(self) -> None:
        self.keys: dict[str, set[str]] = defaultdict(set)  # name → keys of present VMs
        self.removed_keys: dict[str, set[str]] = defaultdict(set)  # name → keys of removed VMs
        self.vm_count_by_group: Counter[tuple[str, str]] = Counter()  # subscription and resource group → VMs there
        self.group_by_key: dict[str, tuple[str, str]] = {}  # key of each present VM → subscription and resource group
        self._shared_groups: dict[tuple[str, str], tuple[str, str]] = {}  # one object for all VMs of a group
        self.power_if_not_running: dict[str, PowerState] = {}  # VM key → state, unless it runs
        self.resources = ResourceIndex()

    def update(self, vm: Vm) -> None:
        name, key = vm.name.casefold(), vm.key
        present, other = (self.keys, self.removed_keys) if vm.removed_at is None else (self.removed_keys, self.keys)
        if name in other:
            other[name].discard(key)
            if not other[name]:
                del other[name]
        present[name].add(key)
        self.resources.update(vm)
        if vm.power is PowerState.RUNNING or vm.removed_at is not None:
            self.power_if_not_running.pop(key, None)
        else:
            self.power_if_not_running[key] = vm.power
        self._update_group(key, (vm.subscription_id, vm.resource_group) if vm.removed_at is None else None)

    def _update_group(self, key: str, group: tuple[str, str] | None) -> None:
        if (old := self.group_by_key.pop(key, None)) is not None:
            self.vm_count_by_group[old] -= 1
            if not self.vm_count_by_group[old]:
                del self.vm_count_by_group[old]
        if group is not None:
            self.group_by_key[key] = self._shared_groups.setdefault(group, group)
            self.vm_count_by_group[group] += 1


class FleetDirectory:
    """Finds VMs by name and lists them by Azure resource, with an index of the fleet in memory.

    It reads the whole fleet when it is made, and follows each commit until `close()` is called. It indexes a large
    commit in turns, or at once when a caller needs the index. It checks no rights: see `VisibleDirectory`.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._indexed = _FleetIndex()
        self._unindexed = deque(store.vms(removed=True))  # VMs that are committed, but not indexed yet
        self._index_all()
        self.close = store.subscribe(self._on_commit)

    def find(self, name: str, is_visible: VmPredicate = _any_vm) -> Vm:
        """Return the present VM with this name, `group/name` or key, ignoring letter case."""
        found = self._matching(name, self._index.keys, is_visible)
        if not found and self._matching(name, self._index.removed_keys, is_visible):
            raise NotFound(f"VM {name!r} was removed", Remedy.EXPLAIN_REMOVED_VM, vm=name)
        return self._require_one(name, found, is_visible)

    def find_any(self, name: str, is_visible: VmPredicate = _any_vm) -> Vm:
        """Return the VM with this name, `group/name` or key, ignoring letter case; it may be a removed one."""
        return self._require_one(
            name,
            self._matching(name, self._index.keys, is_visible)
            or self._matching(name, self._index.removed_keys, is_visible),
            is_visible,
        )

    def find_all_named(self, name: str) -> list[Vm]:
        """Return all VMs with this name (letter case ignored), of any group, present or removed, by key."""
        wanted = name.casefold()
        keys = {*self._index.keys.get(wanted, ()), *self._index.removed_keys.get(wanted, ())}
        return [vm for vm in map(self.store.vm, sorted(keys)) if vm is not None]

    def keys(self) -> list[str]:
        """Return the keys of all present VMs, unsorted, in a new list."""
        return list(self._index.group_by_key)

    def has(self, key: str) -> bool:
        """Return whether a present VM (not removed) has this key, which must be in lower case."""
        return key in self._index.group_by_key

    def power_of(self, key: str) -> PowerState:
        """Return the power state of the present VM with this key (lower case); RUNNING for any other key."""
        return self._index.power_if_not_running.get(key, PowerState.RUNNING)

    def stopped_keys(self) -> list[str]:
        """Return the keys of the present VMs whose power state is not RUNNING, unsorted, in a new list."""
        return list(self._index.power_if_not_running)

    def most_common_group(self) -> tuple[str, str] | None:
        """Return subscription id and name of the resource group with the most present VMs; None without VMs."""
        common = self._index.vm_count_by_group.most_common(1)
        return common[0][0] if common else None

    def subscriptions(self) -> set[str]:
        """Return the subscription ids of the present VMs, as the VMs spell them, in a new set."""
        return {subscription for subscription, _ in self._index.vm_count_by_group}

    def vms_within(self, resource: str) -> Sequence[IndexedVm]:
        """Return the present VMs of a subscription, group or set, in natural order of their keys.

        Do not change the list: it is a cache.
        """
        return self._index.resources.vms_within(resource)

    def has_vms_in(self, resource: str) -> bool:
        """Return whether a subscription, group or set has a present VM, that is, exists."""
        return self._index.resources.has_vms_in(resource)

    def sets_within(self, resource: str) -> list[str]:
        """Return the ids of the scale sets and availability sets of a subscription or group, in natural order."""
        return self._index.resources.sets_within(resource)

    def groups(self) -> list[str]:
        """Return the Azure ids of all resource groups with a present VM, in natural order, in a new list."""
        return self._index.resources.groups()

    def find_group(self, name: str) -> str:
        """Return the Azure resource id of the group with this name, ignoring letter case."""
        wanted, groups = name.strip().casefold(), self.groups()
        found = [group for group in groups if group.rpartition("/")[2].casefold() == wanted]
        if not found:
            names = ", ".join(dict.fromkeys(group.rpartition("/")[2] for group in groups)) or "none"
            raise NotFound(f"no VM is in resource group {name!r}: the groups are {names}; or give a resource id")
        if len(found) > 1:
            raise Refused(f"resource group {name!r} is in several subscriptions: give one of {', '.join(found)}")
        return found[0]

    def _require_one(self, name: str, found: list[Vm], is_visible: VmPredicate) -> Vm:
        if not found:
            suggestion = self._suggestion(name, is_visible)
            raise NotFound(f"VM {name!r} does not exist{suggestion}", Remedy.LIST_VMS)
        if len(found) > 1:
            raise Refused(f"VM {name!r} is ambiguous: say {' or '.join(_distinct_names(found)[:4])}")
        return found[0]

    def _suggestion(self, name: str, is_visible: VmPredicate) -> str:
        """A question with the most similar name of a visible VM; empty in a large fleet."""
        known = (
            self._index.keys if len(self._index.keys) <= _MAX_NAMES_TO_SUGGEST and len(name) <= _MAX_NAME_LENGTH else {}
        )
        close = similar_names(name.strip().casefold(), known, most=_MAX_SIMILAR_NAMES, cutoff=0.75)
        vms = (self.store.vm(key) for similar in close for key in sorted(known[similar]))
        return next((f": did you mean {vm.name!r}?" for vm in vms if vm is not None and is_visible(vm)), "")

    def _matching(self, name: str, keys: dict[str, set[str]], is_visible: VmPredicate) -> list[Vm]:
        wanted = name.strip().strip("/").casefold()
        same_name = keys.get(wanted.rpartition("/")[2], set())
        matching = sorted(key for key in same_name if key == wanted or key.endswith(f"/{wanted}"))
        return [vm for vm in map(self.store.vm, matching) if vm is not None and is_visible(vm)]

    @property
    def _index(self) -> _FleetIndex:
        self._index_all()
        return self._indexed

    def _on_commit(self, committed: AppliedCommit) -> None:
        is_idle = not self._unindexed
        self._unindexed.extend(committed.commit.vms)
        if len(self._unindexed) <= _MAX_VMS_AT_ONCE:
            self._index_all()
        elif is_idle:
            asyncio.get_running_loop().call_soon(self._index_for_a_turn)

    def _index_for_a_turn(self) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _TURN_S
        while self._unindexed and loop.time() < ends_at:
            self._indexed.update(self._unindexed.popleft())
        if self._unindexed:
            loop.call_soon(self._index_for_a_turn)

    def _index_all(self) -> None:
        while self._unindexed:
            self._indexed.update(self._unindexed.popleft())


def _distinct_names(vms: list[Vm]) -> list[str]:
    short = [f"{vm.resource_group}/{vm.name}" for vm in vms]
    return short if len(set(map(str.casefold, short))) == len(vms) else [vm.key for vm in vms]
