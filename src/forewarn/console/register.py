"""Which VMs lie within which resource, in memory, so that no list reads the whole fleet to show a page of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from sys import intern
from typing import NamedTuple

from forewarn.core.fleet import Vm
from forewarn.core.resource import availability_set_resource, group_resource, resource_of, scale_set_resource

_DIGITS = re.compile(r"([0-9]+)")
Place = tuple[list[str | int], str]  # in a list


class Listed(NamedTuple):
    """What a list must know of a VM before it reads it."""

    key: str
    resource: str
    is_alone: bool  # no instance of a scale set or of a cloud service: listed among the VMs


class Register:
    def __init__(self) -> None:
        self._within: dict[str, dict[str, Listed]] = defaultdict(dict)  # resource → VMs in it, by their keys
        self._sorted: dict[str, list[Listed]] = {}  # of those resources that were listed, until they change
        self._above: dict[str, tuple[str, ...]] = {}  # key → the resources that the VM is in, as declared
        self._sets: dict[str, dict[str, str]] = defaultdict(dict)  # subscription or group → its sets
        self._groups: dict[str, str] = {}

    def meet(self, vm: Vm) -> None:
        above = _above(vm)
        listed = Listed(vm.key, resource_of(vm), not (vm.scale_set or vm.cloud_service))
        is_known = self._above.get(vm.key) == above and self._within[above[0].casefold()][vm.key] == listed
        if is_known and vm.removed_at is None:
            return
        self._forget(vm.key)
        if vm.removed_at is None:
            self._add(listed, above)

    def _add(self, listed: Listed, above: tuple[str, ...]) -> None:
        subscription, group, *sets = above
        self._above[listed.key] = above
        self._groups.setdefault(group.casefold(), group)
        for resource in map(str.casefold, above):
            self._within[resource][listed.key] = listed
            self._sorted.pop(resource, None)
        for one in sets:
            for place in (subscription, group):
                self._sets[place.casefold()].setdefault(one.casefold(), one)

    def within(self, resource: str) -> Sequence[Listed]:
        wanted = resource.casefold()
        if wanted not in self._within:
            return []
        if wanted not in self._sorted:
            self._sorted[wanted] = sorted(self._within[wanted].values(), key=lambda listed: in_order(listed.key))
        return self._sorted[wanted]

    def holds(self, resource: str) -> bool:
        return resource.casefold() in self._within

    def sets_within(self, resource: str) -> list[str]:
        return sorted(self._sets.get(resource.casefold(), {}).values(), key=in_order)

    def groups(self) -> list[str]:
        return sorted(self._groups.values(), key=in_order)

    def _forget(self, key: str) -> None:
        """What nothing lies in any more does not exist any more."""
        above = self._above.pop(key, ())
        for resource in map(str.casefold, above):
            del self._within[resource][key]
            self._sorted.pop(resource, None)
        for resource in map(str.casefold, above):
            if not self._within[resource]:
                self._drop(resource, above)

    def _drop(self, resource: str, above: tuple[str, ...]) -> None:
        del self._within[resource]
        self._groups.pop(resource, None)
        self._sets.pop(resource, None)
        for place in above[:2]:
            self._sets.get(place.casefold(), {}).pop(resource, None)


def in_order(text: str) -> Place:
    """What lists are sorted by: without case, and `pool_2` before `pool_10`. No two texts are at one place."""
    parts = _DIGITS.split(text.casefold())
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], text


def _above(vm: Vm) -> tuple[str, ...]:
    """Its subscription, its group, and its set if it has one. Many VMs share each, so each text is kept once."""
    group = group_resource(vm.subscription_id, vm.resource_group)
    return tuple(map(intern, (f"/subscriptions/{vm.subscription_id}", group, *_sets_of(vm))))


def _sets_of(vm: Vm) -> tuple[str, ...]:
    if vm.cloud_service:
        return ()
    if vm.scale_set:
        return (scale_set_resource(vm),)
    return (availability_set_resource(vm),) if vm.availability_set else ()
