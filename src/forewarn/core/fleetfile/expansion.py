"""Expands the tables of a fleet file into numbered hosts and VMs, in the order of the file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice
from typing import Any

import msgspec

from forewarn.base.wording import similar_names
from forewarn.core.fleet import MAX_PLACEMENT_GROUP, AutoApproval, Host, Orchestration, Priority, Vm, vm_key
from forewarn.core.fleetfile import tables
from forewarn.core.fleetfile.parser import ParsedFleetFile, ParsedTable
from forewarn.core.fleetfile.problems import ProblemCollector
from forewarn.core.fleetfile.tables import (
    fill_pattern,
    flexible_instance_ids,
    instance_host_name,
    is_pattern,
    name_error,
    numbered_pattern,
    pattern_error,
    plain_name_error,
)

# Parent resources of VMs (availability sets, scale sets, cloud services) and the values VMs inherit.

_GUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# The keys by which a [[vms]] table names its parent.
PARENT_KEYS = frozenset({"availability_set", "scale_set", "cloud_service"})
_COPIED_KEYS = (
    "size", "os_type", "location", "zone", "priority", "eviction_policy", "update_domain", "fault_domain", "program",
    "directory",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentResource:
    """An availability set, scale set or cloud service that a fleet file declares. `read_parents` makes it."""

    label: str  # for people: "availability set"
    key: str  # the key by which a VM names it: "availability_set"
    table: ParsedTable[tables.CommonVmTable]
    template: Vm  # a nameless VM with the values that its VMs inherit
    update_domains: int  # how many it has
    fault_domains: int  # how many it has
    zones: tuple[str, ...] = ()  # given to its VMs in turn; (): the zone of the template

    @property
    def name(self) -> str:
        """The name of the set or service, as the file writes it."""
        return self.table.content.name

    @property
    def group_key(self) -> tuple[str, str]:
        """The (subscription id, resource group) of the set or service, both in lower case."""
        return (self.template.subscription_id.casefold(), self.template.resource_group.casefold())


class InheritedValues:
    """The values that tables of one fleet file inherit from subscriptions, resource groups and [defaults]."""

    def __init__(self, file: ParsedFleetFile, problems: ProblemCollector) -> None:
        self._problems = problems
        self._all_subscriptions_known = "subscriptions" not in file.invalid_tables
        self._subscriptions = {t.content.name.casefold(): t.content.id for t in file.subscriptions}
        self._subscription_ids = {t.content.id.casefold(): t.content.id for t in file.subscriptions}
        self._defaults = file.defaults
        self._locations = {self._group_key(t): t.content.location for t in file.resource_groups}

    def subscription_id(self, table: ParsedTable[Any]) -> str:
        """Return the id of the subscription that a table names by name or id, else of the default one."""
        named = table.content.subscription or self._defaults.content.subscription
        known = self._subscriptions.get(named.casefold()) or self._subscription_ids.get(named.casefold())
        if known is None and not _GUID.fullmatch(named) and self._all_subscriptions_known:
            line = (table if table.content.subscription else self._defaults).line("subscription")
            remedy = "write its id (a GUID), or declare it with [[subscriptions]], name and id"
            self._problems.add(line, f"subscription {named!r} is not declared", remedy)
        return known or named

    def template(self, table: ParsedTable[tables.CommonVmTable]) -> Vm:
        """Return a VM without a name, in no set, with the values of the table, else those that it inherits."""
        content, defaults = table.content, self._defaults.content
        group = content.resource_group or defaults.resource_group
        self._check_group(table, group)
        subscription_id = self.subscription_id(table)
        base = Vm(
            name="",
            vm_id="",
            subscription_id=subscription_id,
            resource_group=group,
            location=self._locations.get((subscription_id.casefold(), group.casefold())) or defaults.location,
            size=defaults.size,
            os_type=defaults.os_type,
            tags=defaults.tags,
        )
        return apply_table(base, table)

    def _check_group(self, table: ParsedTable[tables.CommonVmTable], name: str) -> None:
        error = plain_name_error(name, limit=90)
        if error:
            line = (table if table.has("resource_group") else self._defaults).line("resource_group")
            remedy = 'write a plain name, such as resource_group = "prod"'
            self._problems.add(line, f"resource_group {name!r} {error}", remedy)

    def _group_key(self, table: ParsedTable[tables.ResourceGroupTable]) -> tuple[str, str]:
        return (self.subscription_id(table).casefold(), table.content.name.casefold())


def apply_table(base: Vm, table: ParsedTable[Any]) -> Vm:
    """Return `base` with the values that the table gives; what the table leaves out stays as in `base`."""
    content = table.content
    values: dict[str, Any] = {key: getattr(content, key) for key in _COPIED_KEYS if table.has(key)}
    if table.has("tags"):
        values["tags"] = base.tags | content.tags
    if table.has("environment"):
        values["environment"] = base.environment | content.environment
    if table.has("terminate_notification"):
        values["terminate_notice_min"] = _notice_minutes(content.terminate_notification)
    if table.has("auto_approve"):
        values["auto_approve"] = AutoApproval(
            restart="restart" in content.auto_approve, redeploy="redeploy" in content.auto_approve
        )
    if table.has("approve_all_down"):
        values["approves_all_down"] = content.approve_all_down
    return msgspec.structs.replace(base, **values)


def _notice_minutes(value: bool | int) -> int:
    """Return the terminate notice in minutes; `true` means five (spec §6.3)."""
    return (5 if value else 0) if isinstance(value, bool) else value


def read_parents(file: ParsedFleetFile, inherited: InheritedValues) -> list[ParentResource]:
    """Return the sets and services of the file: availability sets, then scale sets, then cloud services."""
    sets = [_read_parent("availability set", table, inherited) for table in file.availability_sets]
    scale_sets = [_read_parent("scale set", table, inherited) for table in file.scale_sets]
    return [*sets, *scale_sets, *(_read_parent("cloud service", table, inherited) for table in file.cloud_services)]


def _read_parent(label: str, table: ParsedTable[Any], inherited: InheritedValues) -> ParentResource:
    content, key = table.content, label.replace(" ", "_")
    orchestration = getattr(content, "orchestration", Orchestration.UNIFORM)
    has_groups = orchestration is Orchestration.UNIFORM
    more = {
        key: content.name,
        "orchestration": orchestration,
        "placement_group": getattr(content, "placement_group", "") if has_groups else "",
        "narrow_delivery": getattr(content, "narrow_delivery", False),
        "update_domain_count": content.update_domains,
        "fault_domain_count": content.fault_domains,
    }
    return ParentResource(
        label=label,
        key=key,
        table=table,
        template=msgspec.structs.replace(inherited.template(table), **more),
        update_domains=content.update_domains,
        fault_domains=content.fault_domains,
        zones=getattr(content, "zones", ()),
    )


def find_parent(
    table: ParsedTable[tables.VmsTable],
    parents: Sequence[ParentResource],
    template: Vm,
    file: ParsedFleetFile,
    problems: ProblemCollector,
) -> ParentResource | None:
    """Return the set or service that a [[vms]] table names; None unless it names exactly one declared one.

    It is searched in the resource group of `template`; then, if the table names no group or subscription and only one
    has that name, in all groups.
    """
    named = sorted(key for key in PARENT_KEYS if table.has(key))
    if len(named) > 1:
        what = f"VM {table.content.name!r} is in more than one set or service: {', '.join(named)}"
        problems.add(table.line(*named[1:]), what, "keep one of them: it decides which VMs see its events (spec §7.1)")
    if len(named) != 1:
        return None
    found = _matching_parent(table, named[0], parents, template)
    if found is None and f"{named[0]}s" not in file.invalid_tables:
        _report_unknown_parent(table, named[0], parents, problems)
    return found


def _matching_parent(
    table: ParsedTable[tables.VmsTable], key: str, parents: Sequence[ParentResource], template: Vm
) -> ParentResource | None:
    """Look in the resource group that the VM names, else in the default one, else in all of them."""
    wanted = getattr(table.content, key).casefold()
    alike = [parent for parent in parents if parent.key == key and parent.name.casefold() == wanted]
    place = (template.subscription_id.casefold(), template.resource_group.casefold())
    here = [parent for parent in alike if parent.group_key == place]
    if here or table.has("resource_group") or table.has("subscription") or len(alike) != 1:
        return here[0] if here else None
    return alike[0]


def _report_unknown_parent(
    table: ParsedTable[tables.VmsTable], key: str, parents: Sequence[ParentResource], problems: ProblemCollector
) -> None:
    wanted = getattr(table.content, key)
    label = key.replace("_", " ")
    elsewhere = [p for p in parents if p.key == key and p.name.casefold() == wanted.casefold()]
    close = similar_names(wanted, [parent.name for parent in parents if parent.key == key])
    if elsewhere:
        groups = " or ".join(repr(parent.template.resource_group) for parent in elsewhere)
        remedy = f"it is in resource group {groups}: give the VM that resource_group"
    else:
        remedy = f"did you mean {close[0]!r}?" if close else f"declare it with [[{key}s]]"
    problems.add(table.line(key), f"{label} {wanted!r} is not declared in the VM's resource group", remedy)


# Checks of single tables of a fleet file: names, zones, priority, domains, duplicates.


def check_groups(file: ParsedFleetFile, problems: ProblemCollector) -> None:
    """Report subscriptions and resource groups with bad names, and those declared twice, to `problems`."""
    duplicates = _DuplicateCheck(problems)
    for subscription in file.subscriptions:
        content = subscription.content
        _check_plain_name(subscription, content.name, problems, limit=90)
        duplicates.check(subscription, f"subscription {content.name!r}", content.name.casefold())
        duplicates.check(subscription, f"subscription id {content.id!r}", content.id.casefold(), key="id")
    for group in file.resource_groups:
        _check_plain_name(group, group.content.name, problems, limit=90)
        named = (group.content.subscription.casefold(), group.content.name.casefold())
        duplicates.check(group, f"resource group {group.content.name!r}", named)


def check_parents(parents: list[ParentResource], problems: ProblemCollector) -> None:
    """Report sets and services with bad names, zones or priorities, or declared twice, to `problems`."""
    duplicates = _DuplicateCheck(problems)
    for parent in parents:
        thing = f"{parent.label} {parent.name!r}"
        limit = 55 if parent.template.is_flexible else 56  # leaves characters for _1a2b3c4d or _1000000
        _check_plain_name(parent.table, parent.name, problems, limit=limit)
        check_zone(parent.table, thing, problems)
        _check_priority(parent.table, parent.template, thing, problems)
        _check_no_placement_group(parent.table, parent, problems)
        _check_narrow_delivery(parent, problems)
        duplicates.check(parent.table, thing, (parent.key, parent.group_key, parent.name.casefold()))


def _check_no_placement_group(
    table: ParsedTable[Any], scale_set: ParentResource | None, problems: ProblemCollector
) -> None:
    if scale_set and scale_set.template.is_flexible and table.has("placement_group"):
        what = f"scale set {scale_set.name!r} is Flexible and has no placement groups (spec §14.5)"
        problems.add(table.line("placement_group"), what, "leave out placement_group")


def _check_narrow_delivery(parent: ParentResource, problems: ProblemCollector) -> None:
    domains, table = parent.fault_domains, parent.table
    if parent.template.narrow_delivery and domains != 1 and "fault_domains" not in table.invalid_keys:
        what = f"{parent.label} {parent.name!r} has narrow_delivery and {domains} fault domains (spec §14.6)"
        problems.add(table.line("narrow_delivery"), what, "write fault_domains = 1, or leave out narrow_delivery")


class _DuplicateCheck:
    def __init__(self, problems: ProblemCollector) -> None:
        self._problems = problems
        self._seen: dict[Hashable, int] = {}

    def check(self, table: ParsedTable[Any], thing: str, identity: Hashable, *, key: str = "name") -> None:
        first = self._seen.get((key, identity))
        if first is None:
            self._seen[(key, identity)] = table.line(key)
        else:
            what = f"{thing} is declared again, first on line {first}"
            self._problems.add(table.line(key), what, f"keep one of them, or give this one another {key}")


def check_role(role: ParsedTable[tables.RoleTable], problems: ProblemCollector) -> bool:
    """Return whether the name of a cloud service's role is valid; report it to `problems` if it is not."""
    return _check_plain_name(role, role.content.name, problems, limit=53)  # leaves 11 characters for _IN_1000000


def _check_plain_name(table: ParsedTable[Any], name: str, problems: ProblemCollector, *, limit: int) -> bool:
    error = plain_name_error(name, limit=limit)
    if error:
        problems.add(table.line("name"), f"the name {name!r} {error}", 'write a plain name, such as name = "prod"')
    return not error


def check_names(
    table: ParsedTable[tables.VmsTable] | ParsedTable[tables.HostsTable], thing: str, problems: ProblemCollector
) -> bool:
    """Return whether the names that a [[vms]] or [[hosts]] table makes are valid; if not, report that."""
    content = table.content
    error = pattern_error(content.name)
    if not error:
        pattern = numbered_pattern(content.name, counted=table.has("count"))
        error = name_error(fill_pattern(pattern, content.first + content.count - 1))
    if error:
        remedy = 'write a name of up to 64 characters without slashes, such as "web-0", "web-{n}" or "web-{n:03}"'
        problems.add(table.line("name"), f"the {thing} name {content.name!r} {error}", remedy)
    return not error


def check_zone(table: ParsedTable[Any], thing: str, problems: ProblemCollector) -> None:
    """Report a table that has both zone and zones to `problems`; `thing` names it in the message."""
    if table.has("zone") and table.has("zones"):
        problems.add(table.line("zones"), f"{thing} has both zone and zones", "keep one of them")


def _check_priority(table: ParsedTable[Any], template: Vm, thing: str, problems: ProblemCollector) -> None:
    spot = template.priority is Priority.SPOT
    if spot and template.terminate_notice_min and {"priority", "terminate_notification"} & table.given_keys:
        what = f"{thing} is Spot, and a Spot VM gets no terminate notification (spec §6.3)"
        problems.add(table.line("terminate_notification", "priority"), what, "leave out one of the two")
    if table.has("eviction_policy") and not spot and "priority" not in table.invalid_keys:
        what = f"{thing} has an eviction policy but is not Spot"
        remedy = 'write priority = "Spot" as well, or leave out eviction_policy'
        problems.add(table.line("eviction_policy"), what, remedy)


def check_vms(
    table: ParsedTable[tables.VmsTable], template: Vm, parent: ParentResource | None, problems: ProblemCollector
) -> None:
    """Report contradictions in a [[vms]] table to `problems`, as in zones, priority and domains."""
    thing = f"VM {table.content.name!r}"
    check_zone(table, thing, problems)
    _check_priority(table, template, thing, problems)
    if table.has("availability_set") and (table.has("zone") or table.has("zones")):
        what = f"{thing} is in an availability set and in a zone, which exclude each other (spec §7.1)"
        problems.add(table.line("zone", "zones"), what, "leave out one of the two")
    if table.has("placement_group") and not {"scale_set"} & (table.given_keys | table.invalid_keys):
        what = f"{thing} has a placement group but no scale set"
        problems.add(table.line("placement_group"), what, "write scale_set as well, or leave it out")
    _check_no_placement_group(table, parent, problems)
    for key in ("auto_approve", "approve_all_down"):
        if parent and table.has(key):
            _report_own_policy(table, key, parent, problems)
    if parent or not PARENT_KEYS & (table.given_keys | table.invalid_keys):
        _check_domain(table, parent, "update_domain", parent.update_domains if parent else 1, problems)
        _check_domain(table, parent, "fault_domain", parent.fault_domains if parent else 1, problems)


def _report_own_policy(
    table: ParsedTable[tables.VmsTable], key: str, parent: ParentResource, problems: ProblemCollector
) -> None:
    what = f"VM {table.content.name!r} is in {parent.label} {parent.name!r} and has no {key} of its own"
    remedy = f"move {key} to the {parent.label}, line {parent.table.line()}"
    if parent.key == "cloud_service":
        remedy = "leave it out: nothing is approved automatically in a cloud service"
    problems.add(table.line(key), what, remedy)


def _check_domain(
    table: ParsedTable[tables.VmsTable],
    parent: ParentResource | None,
    key: str,
    domains: int,
    problems: ProblemCollector,
) -> None:
    value = getattr(table.content, key)
    if not table.has(key) or value < domains:
        return
    label = key.replace("_", " ")
    if parent is None:
        what, remedy = f"VM {table.content.name!r} is in no set and so in {label} 0, not {value}", f"leave out {key}"
    else:
        what = f"{parent.label} {parent.name!r} has no {label} {value}: it has {domains}, counted from 0"
        remedy = f"write {key} = {domains - 1} or less, or {key}s = {value + 1} on line {parent.table.line()}"
    problems.add(table.line(key), what, remedy)


def check_patterns(table: ParsedTable[tables.VmsTable], problems: ProblemCollector) -> bool:
    """Return whether a [[vms]] table has valid names, and valid braces in its other patterns."""
    keys = ("computer_name", "address", "host")
    errors = {key: error for key in keys if (error := pattern_error(getattr(table.content, key)))}
    for key, error in errors.items():
        what = f"{key} {getattr(table.content, key)!r} {error}"
        problems.add(table.line(key), what, "write {n} where the number goes, or {n:03} for three digits")
    return check_names(table, "VM", problems) and not errors


_LOCATION_KEYS = PARENT_KEYS | {"location", "zone", "zones", "host"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VmBatch:
    """The VMs that one table of a fleet file declares, with the facts that later checks need."""

    table: ParsedTable[Any]  # the table that declares them: of a scale set, a role or [[vms]]
    vms: list[Vm]  # without vm_id, and with a host only if the table names one
    unspecified_fields: frozenset[str]  # fields of Vm that the file does not fix: chosen when it is added, then kept
    has_clear_location: bool  # False: a reported problem leaves their location or parent unclear


def expand_hosts(
    file: ParsedFleetFile, problems: ProblemCollector
) -> list[tuple[Host, ParsedTable[tables.HostsTable]]]:
    found: list[tuple[Host, ParsedTable[tables.HostsTable]]] = []
    for table in file.hosts:
        check_zone(table, f"host {table.content.name!r}", problems)
        if check_names(table, "host", problems):
            found += [(host, table) for host in _numbered_hosts(table, file.defaults.content.location)]
    return found


def _numbered_hosts(table: ParsedTable[tables.HostsTable], location: str) -> Iterator[Host]:
    content = table.content
    pattern = numbered_pattern(content.name, counted=table.has("count"))
    for n in range(content.count):
        zone = content.zones[n % len(content.zones)] if content.zones else content.zone
        yield Host(name=fill_pattern(pattern, content.first + n), location=content.location or location, zone=zone)


def expand_vms(file: ParsedFleetFile, inherited: InheritedValues, problems: ProblemCollector) -> list[VmBatch]:
    """Return the VMs that all tables declare, one batch per table in file order, without chosen hosts."""
    parents = read_parents(file, inherited)
    check_groups(file, problems)
    check_parents(parents, problems)

    series = [*_instance_series(file, parents, problems), *_declared_series(file, inherited, parents, problems)]
    _check_parents_have_vms(parents, series, file, problems)

    rotation = _DomainRotation()
    batches = [_vm_batch(one, rotation, problems) for one in series]
    return sorted(batches, key=lambda batch: batch.table.line())


def _vm_batch(series: _VmSeries, rotation: _DomainRotation, problems: ProblemCollector) -> VmBatch:
    return VmBatch(
        table=series.table,
        vms=list(_expand_series(series, rotation, problems)),
        unspecified_fields=series.unspecified_fields,
        has_clear_location=_has_clear_location(series.table, series.parent),
    )


def _has_clear_location(table: ParsedTable[Any], parent: ParentResource | None) -> bool:
    zone_keys = table.given_keys & {"zone", "zones"}
    contradicts = len(zone_keys) == 2 or (zone_keys and table.has("availability_set"))
    lacks_parent = parent is None and PARENT_KEYS & table.given_keys
    invalid = table.invalid_keys & _LOCATION_KEYS or (parent and parent.table.invalid_keys & _LOCATION_KEYS)
    return not (contradicts or lacks_parent or invalid)


def _instance_series(
    file: ParsedFleetFile, parents: list[ParentResource], problems: ProblemCollector
) -> Iterator[_VmSeries]:
    """Yield the instances of scale sets and roles. They take update domains before the VMs of [[vms]] do."""
    for parent, table in zip(parents, [*file.availability_sets, *file.scale_sets, *file.cloud_services], strict=True):
        if isinstance(table.content, tables.ScaleSetTable) and table.has("count"):
            make_series = _flexible_set_series if parent.template.is_flexible else _scale_set_series
            yield make_series(parent, table.content)
        for role in file.roles.get(table.path, []) if isinstance(table.content, tables.CloudServiceTable) else []:
            if check_role(role, problems):
                yield _role_series(role, parent)


def _scale_set_series(parent: ParentResource, content: tables.ScaleSetTable) -> _VmSeries:
    """Name instances `set_7`, with hostname `set000007` (spec §4.2)."""
    prefix = content.computer_name_prefix or content.name
    return _VmSeries(
        table=parent.table,
        template=parent.template,
        parent=parent,
        name=lambda n: f"{content.name}_{n}",
        computer_name=lambda n: instance_host_name(prefix, n),
        rotation_key=f"{parent.table.path}",
        count=content.count,
        zones=content.zones,
        address=content.address,
    )


def _flexible_set_series(parent: ParentResource, content: tables.ScaleSetTable) -> _VmSeries:
    """Name VMs `set_1a2b3c4d`, with hostname `set1a2b3c4d` (spec §14.5)."""
    prefix, template = content.computer_name_prefix or content.name, parent.template
    set_key = vm_key(template.subscription_id, template.resource_group, content.name)
    ids = tuple(islice(flexible_instance_ids(set_key), content.count))
    return _VmSeries(
        table=parent.table,
        template=template,
        parent=parent,
        name=lambda n: f"{content.name}_{ids[n]}",
        computer_name=lambda n: f"{prefix}{ids[n]}",
        rotation_key=f"{parent.table.path}",
        count=content.count,
        zones=content.zones,
        address=content.address,
    )


def _role_series(role: ParsedTable[tables.RoleTable], service: ParentResource) -> _VmSeries:
    """Name role instances `FrontEnd_IN_0` (spec §4.2)."""

    def name(n: int) -> str:
        return f"{role.content.name}_IN_{n}"

    return _VmSeries(
        table=role,
        template=apply_table(service.template, role),
        parent=service,
        name=name,
        computer_name=name,
        rotation_key=f"{role.path}",
        count=role.content.count,
        address=role.content.address,
    )


def _declared_series(
    file: ParsedFleetFile, inherited: InheritedValues, parents: list[ParentResource], problems: ProblemCollector
) -> Iterator[_VmSeries]:
    for table in file.vms:
        standalone = inherited.template(table)
        parent = find_parent(table, parents, standalone, file, problems)
        template = apply_table(parent.template, table) if parent else standalone
        check_vms(table, template, parent, problems)
        if check_patterns(table, problems):
            yield _vms_table_series(table, template, parent)


def _vms_table_series(table: ParsedTable[tables.VmsTable], template: Vm, parent: ParentResource | None) -> _VmSeries:
    content, counted = table.content, table.has("count")
    name = numbered_pattern(content.name, counted=counted)
    computer_name = numbered_pattern(content.computer_name, counted=counted) if content.computer_name else name
    if table.has("placement_group"):
        template = msgspec.structs.replace(template, placement_group=content.placement_group)
    return _VmSeries(
        table=table,
        template=template,
        parent=parent,
        name=lambda n: fill_pattern(name, n),
        computer_name=lambda n: fill_pattern(computer_name, n),
        rotation_key=f"{parent.table.path}" if parent else "",
        count=content.count,
        first=content.first,
        zones=content.zones or (parent.zones if parent and not table.has("zone") else ()),
        address=content.address,
        host=content.host,
    )


def _check_parents_have_vms(
    parents: list[ParentResource], series: list[_VmSeries], file: ParsedFleetFile, problems: ProblemCollector
) -> None:
    """Report scale sets and cloud services without VMs; an availability set may be empty."""
    parents_with_vms = {id(one.parent) for one in series}
    all_vms_known = "vms" not in file.invalid_tables
    for parent in parents:
        if (
            parent.key == "availability_set"
            or id(parent) in parents_with_vms
            or not all_vms_known
            or "count" in parent.table.invalid_keys
        ):
            continue
        remedy = "write count = 3 below it" if parent.key == "scale_set" else "add [[cloud_services.roles]] below it"
        problems.add(parent.table.line("name"), f"{parent.label} {parent.name!r} has no VM", remedy)


_CHOSEN_FIELDS = frozenset({"computer_name", "update_domain", "fault_domain", "address", "host"})
_METADATA_ADDRESS = "169.254.169.254"  # of the metadata endpoint itself (spec §2.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _VmSeries:
    """How the VMs of one table are made: a template, and what depends on the number of a VM."""

    table: ParsedTable[Any]  # a scale set, a role or [[vms]]
    template: Vm  # a nameless VM with the values that all of them have
    parent: ParentResource | None  # None: they are in no set or service
    name: Callable[[int], str]  # by number
    computer_name: Callable[[int], str]  # by number
    rotation_key: str = ""  # series with the same key share one rotation of update domains and placement groups
    count: int = 1
    first: int = 0  # the number of the first VM
    zones: tuple[str, ...] = ()  # given to the VMs in turn; (): the zone of the template
    address: str = ""  # of the first VM, counted up from there, or a pattern with {n}; "": none
    host: str = ""  # a name or a pattern with {n}; "": chosen later

    @property
    def unspecified_fields(self) -> frozenset[str]:
        """Names of fields of Vm that the file does not set: chosen when the VM is added, and then kept."""
        chosen = set(_CHOSEN_FIELDS - self.table.given_keys)
        if self.template.placement_group == tables.AUTO_PLACEMENT_GROUP:
            chosen.add("placement_group")
        if self.table.has("computer_name_prefix"):
            chosen.discard("computer_name")
        if self.zones:
            chosen.add("zone")
        if not (self.table.has("approve_all_down") or (self.parent and self.parent.table.has("approve_all_down"))):
            chosen.add("approves_all_down")  # then a change through Azure's API stays
        return frozenset(chosen)


class _DomainRotation:
    """Counts the VMs of each set over all tables that declare them, to give them domains in turn."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def next_index(self, series: _VmSeries) -> int:
        key = f"{series.rotation_key} {series.template.placement_group}"
        self._taken[key] += 1
        return self._taken[key] - 1


def _expand_series(series: _VmSeries, rotation: _DomainRotation, problems: ProblemCollector) -> Iterator[Vm]:
    template, parent, zones = series.template, series.parent, series.zones
    update_domains = parent.update_domains if parent and not series.table.has("update_domain") else 0
    fault_domains = parent.fault_domains if parent and not series.table.has("fault_domain") else 0
    for i, n in enumerate(range(series.first, series.first + series.count)):
        index = rotation.next_index(series) if parent else 0
        yield msgspec.structs.replace(
            template,
            name=series.name(n),
            computer_name=series.computer_name(n),
            zone=zones[i % len(zones)] if zones else template.zone,
            update_domain=index % update_domains if update_domains else template.update_domain,
            fault_domain=index % fault_domains if fault_domains else template.fault_domain,
            placement_group=_placement_group(template, index),
            address=_address(series, i, n, problems) if series.address else "",
            host=fill_pattern(series.host, n) if series.host else "",
        )


def _placement_group(template: Vm, index: int) -> str:
    if template.placement_group != tables.AUTO_PLACEMENT_GROUP:
        return template.placement_group
    return f"pg-{index // MAX_PLACEMENT_GROUP}"


def _address(series: _VmSeries, i: int, n: int, problems: ProblemCollector) -> str:
    line = series.table.line("address")
    written = fill_pattern(series.address, n) if is_pattern(series.address) else series.address
    offset = 0 if is_pattern(series.address) else i
    try:
        address = ip_address(written) + offset
    except ValueError:
        what = (
            f"address {written!r} plus {offset} is not an IP address" if offset else f"{written!r} is not an IP address"
        )
        remedy = 'write one such as "10.0.0.4"; with a count and no {n}, addresses count up from it'
        problems.add(line, what, remedy, rule="address")
        return ""
    if address.is_multicast or address.is_unspecified or str(address) == _METADATA_ADDRESS:
        what = f"a VM cannot have the address '{address}'"
        problems.add(line, what, 'write one such as "10.0.0.4"', rule="address")
    return str(address)
