"""Parent resources of VMs (availability sets, scale sets, cloud services) and the values VMs inherit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from forewarn.base.wording import similar_names
from forewarn.core.fleet import AutoApproval, Orchestration, Vm
from forewarn.core.fleetfile import tables
from forewarn.core.fleetfile.naming import plain_name_error
from forewarn.core.fleetfile.parser import ParsedFleetFile, ParsedTable
from forewarn.core.fleetfile.problems import ProblemCollector

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
