"""Maintenance configurations, their assignments, and the windows that VMs get from them (spec §13.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from forewarn.base.times import LabTime
from forewarn.base.wording import first_names
from forewarn.core.azure_windows import AzureWindow, MaintenanceScope
from forewarn.core.fleet import Vm
from forewarn.core.resource_ids import group_resource_id, scale_set_resource_id, vm_resource_id
from forewarn.core.windows import MaintenanceCalendar, MaintenanceWindow, closing_times, next_start, window_text

VM_TYPE = "microsoft.compute/virtualmachines"
SCALE_SET_TYPE = "microsoft.compute/virtualmachinescalesets"
_MAX_NAMED_CONFIGURATIONS = 3  # more of them are counted instead of named


class MaintenanceConfiguration(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A maintenance configuration: when the resources that it is assigned to may be maintained. Stored.

    Configurations of scope Host affect only rollouts; those of other scopes have no effect. A change also counts for
    scheduled events, but leaves their NotBefore.
    """

    id: str  # its resource id, as its creator spelled it
    location: str  # shown to Azure's clients, without effect
    maintenance_scope: MaintenanceScope  # Host, or another one that is stored without effect
    azure_window: AzureWindow  # as its creator wrote it
    window: MaintenanceWindow  # the same, as decisions use it, with the openings that were canceled
    tags: dict[str, str] = {}  # name → value
    namespace: str = ""  # stored and shown, without effect
    extension_properties: dict[str, str] = {}  # stored and shown, without effect
    install_patches: dict[str, Any] = {}  # stored and shown, without effect: nothing here patches guests
    created_by: str = ""  # a name
    created_at: LabTime = 0
    changed_by: str = ""  # the name of who changed it last
    changed_at: LabTime = 0

    @property
    def key(self) -> str:
        """The configuration's unique key: its resource id in lower case."""
        return self.id.casefold()

    @property
    def name(self) -> str:
        """The name of the configuration: the last part of its resource id, as spelled there."""
        return self.id.rpartition("/")[2]


class AssignmentFilter(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Which VMs of a group or subscription an assignment is for; an empty field allows all. Stored."""

    resource_types: tuple[str, ...] = ()  # `Microsoft.Compute/virtualMachines` or `…/virtualMachineScaleSets`
    resource_groups: tuple[str, ...] = ()  # names
    os_types: tuple[str, ...] = ()  # `Linux` or `Windows`
    locations: tuple[str, ...] = ()  # names of locations
    tags: dict[str, tuple[str, ...]] = {}  # name → values, of which a VM must have one; (): any value
    needs_all_tags: bool = False  # a VM must match all the names in `tags`, not just one

    def allows(self, vm: Vm) -> bool:
        """Return whether the filter allows this VM; an instance of a uniform set has the type of the set."""
        vm_type = SCALE_SET_TYPE if vm.is_uniform_instance else VM_TYPE
        values = (
            (vm_type, self.resource_types),
            (vm.resource_group, self.resource_groups),
            (vm.os_type, self.os_types),
            (vm.location, self.locations),
        )
        if any(allowed and not _is_among(value, allowed) for value, allowed in values):
            return False
        return self._allows_tags({name.casefold(): value for name, value in vm.tags.items()})

    def _allows_tags(self, tags: dict[str, str]) -> bool:
        if not self.tags:
            return True
        found = (_has_tag(tags, name, values) for name, values in self.tags.items())
        return all(found) if self.needs_all_tags else any(found)


def _is_among(value: str, allowed: Iterable[str]) -> bool:
    return any(value.casefold() == other.casefold() for other in allowed)


def _has_tag(tags: dict[str, str], name: str, values: tuple[str, ...]) -> bool:
    value = tags.get(name.casefold())
    return value is not None and (not values or value in values)


class ConfigurationAssignment(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The assignment of a configuration to a VM, scale set, resource group or subscription. Stored."""

    id: str  # its resource id, below that of its target, as its creator spelled it
    target: str  # the resource id of what it is assigned to
    configuration_id: str  # the resource id of the configuration
    location: str = ""  # stored and shown, without effect; "": none
    filter: AssignmentFilter | None = None  # only for a resource group or subscription; None: all VMs of the target
    created_by: str = ""  # a name
    created_at: LabTime = 0
    changed_by: str = ""  # the name of who changed it last
    changed_at: LabTime = 0

    @property
    def key(self) -> str:
        """The assignment's unique key: its resource id in lower case."""
        return self.id.casefold()

    @property
    def name(self) -> str:
        """The name of the assignment: the last part of its resource id, as spelled there."""
        return self.id.rpartition("/")[2]


class HostConfigurations:
    """The maintenance configurations of scope Host that are assigned to anything, to be looked up by VM."""

    def __init__(
        self,
        configurations: Iterable[MaintenanceConfiguration] = (),
        assignments: Iterable[ConfigurationAssignment] = (),
    ) -> None:
        known = {c.key: c for c in configurations if c.maintenance_scope is MaintenanceScope.HOST}
        self._by_target: defaultdict[str, list[tuple[AssignmentFilter | None, MaintenanceConfiguration]]]
        self._by_target = defaultdict(list)
        for assignment in assignments:
            if (found := known.get(assignment.configuration_id.casefold())) is not None:
                self._by_target[assignment.target.casefold()].append((assignment.filter, found))
        assigned = {found.window for pairs in self._by_target.values() for _, found in pairs}
        self.closing_times = closing_times(assigned)  # when those that do not open for ever are over, in any order

    def __bool__(self) -> bool:
        """Return whether any configuration of scope Host is assigned to anything."""
        return bool(self._by_target)

    def of_vm(self, vm: Vm) -> tuple[MaintenanceConfiguration, ...]:
        """Return the maintenance configurations for this VM, each once, sorted by key; () without any."""
        if not self._by_target:
            return ()
        places = [vm_resource_id(vm), group_resource_id(vm.subscription_id, vm.resource_group)]
        places.append(f"/subscriptions/{vm.subscription_id}")
        if vm.scale_set:
            places.append(scale_set_resource_id(vm))
        found = {
            configuration.key: configuration
            for place in places
            for condition, configuration in self._by_target.get(place.casefold(), ())
            if condition is None or condition.allows(vm)
        }
        return tuple(found[key] for key in sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalendar:
    """When events of several VMs may start together without an approval, and by whose configurations."""

    common: MaintenanceCalendar | None  # for all of them, without names in `source`; None: at any time
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # scope id → key → name of its configurations

    def for_scope(self, scope_id: str) -> MaintenanceCalendar | None:
        """Return the calendar for the events of one scope; None: they may start at any time."""
        # The calendar's `source` names only the configurations of VMs in that scope, because the scope's users read it.
        if self.common is None or not self.names:
            return self.common
        own = self.names.get(scope_id, {})
        parts = []
        if own:
            noun = "configuration" if len(own) == 1 else "configurations"
            parts.append(f"{noun} {first_names([own[key] for key in sorted(own)], _MAX_NAMED_CONFIGURATIONS)}")
        if any(key not in own for names in self.names.values() for key in names):
            parts.append("other VMs of the host")
        return replace(self.common, source=" and ".join(parts))


class TargetWindows:
    """Says when events of VMs may start, by the maintenance configurations that are assigned to the VMs.

    `at` is the lab time at which the notice of the events ends. Results are cached in the instance, so make a new one
    when either changes.
    """

    def __init__(self, configurations: HostConfigurations, at: float) -> None:
        self._configurations = configurations
        self._at = at
        self._starts: dict[MaintenanceCalendar, bool] = {}  # whether it has a start at `at` or later
        self._openings: dict[str, bool] = {}  # key of a configuration → whether it opens at `at` or later

    def calendar_for(self, vms: Iterable[Vm], own: MaintenanceCalendar | None) -> GroupCalendar:
        """Return when events of these VMs may start together without an approval.

        A VM with configurations has their windows instead of the rollout's; the rollout's blackout dates and deadline
        still hold for it. The windows of several VMs must be open at the same time, which may never happen: `can_start`
        says whether it can.
        """
        sets: set[tuple[MaintenanceWindow, ...]] = set()
        names: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for vm in vms:
            found = [c for c in self._configurations.of_vm(vm) if self._opens(c)]
            if found:
                names[vm.scope_id].update({c.key: c.name for c in found})
                sets.add(tuple(c.window for c in found))
            elif own is not None:
                sets.add(own.windows)
        if not names:
            return GroupCalendar(common=own)
        first, *others = sets if len(sets) == 1 else sorted(sets, key=lambda set_: [window_text(one) for one in set_])
        common = MaintenanceCalendar(
            windows=first,
            other_sets=tuple(others),
            blackouts=own.blackouts if own is not None else (),
            deadline=own.deadline if own is not None else None,
        )
        return GroupCalendar(common=common, names=names)

    def _opens(self, configuration: MaintenanceConfiguration) -> bool:
        if configuration.key not in self._openings:
            calendar = MaintenanceCalendar(windows=(configuration.window,))
            self._openings[configuration.key] = next_start(calendar, self._at) is not None
        return self._openings[configuration.key]

    def can_start(self, calendar: MaintenanceCalendar | None) -> bool:
        """Return whether an event with this calendar could ever start without an approval after its notice."""
        if calendar is None:
            return True
        if calendar not in self._starts:
            self._starts[calendar] = next_start(calendar, self._at) is not None
        return self._starts[calendar]
