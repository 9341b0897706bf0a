"""Writes a fleet file for one VM to add, so that the VM passes the same checks as a whole fleet file.

The set that the VM joins gives a missing location, domain or placement group. A missing subscription or resource
group is the one that most VMs are in. The fleet file's defaults give the rest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from forewarn.core.fleet import MAX_PLACEMENT_GROUP, AutoApproval, EvictionPolicy, Host, Priority, Vm
from forewarn.core.fleetfile.tables import DefaultsTable
from forewarn.errors import Rejected
from forewarn.store.interface import Store

_SET_KEYS = ("availability_set", "scale_set", "cloud_service")
_DEFAULT_DOMAIN_COUNT = 5
_COPIED_FIELDS = ("name", "zone", "host", "computer_name", "size", "os_type", *_SET_KEYS, "address")


class NewVm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A VM to add. Empty fields are filled in from its set, the rest of the fleet, and the defaults."""

    name: Annotated[str, Meta(min_length=1)]
    subscription_id: str = ""
    resource_group: str = ""
    location: str = ""
    zone: str = ""
    host: str = ""
    computer_name: str = ""
    size: str = ""
    os_type: Literal["Linux", "Windows", ""] = ""
    availability_set: str = ""
    scale_set: str = ""
    placement_group: str = ""
    cloud_service: str = ""
    update_domain: Annotated[int, Meta(ge=0, lt=1000)] | None = None
    fault_domain: Annotated[int, Meta(ge=0, lt=1000)] | None = None
    priority: Priority | None = None
    eviction_policy: EvictionPolicy | None = None
    terminate_notice_min: int = 0
    auto_approve: AutoApproval = AutoApproval()
    tags: dict[str, str] = {}
    address: str = ""


def fleet_file_for(
    new_vm: NewVm, store: Store, *, usual_group: tuple[str, str] | None, subscriptions: Iterable[str]
) -> str:
    """Return the text of a fleet file with this VM, its set, the known subscriptions and all hosts.

    `usual_group`: the subscription id and resource group to use if the VM names none; None: the defaults of a fleet
    file. `subscriptions` are ids. Writes nothing. Raises Rejected if the name contains braces, or if the hosts are in
    several locations and neither the VM nor its set names one.
    """
    if "{" in new_vm.name or "}" in new_vm.name:
        raise Rejected(f"the name {new_vm.name!r} contains braces: give the name of one VM, such as 'web-3'")
    hosts = store.hosts()
    group = _subscription_and_group(new_vm, usual_group)
    siblings = _vms_of_same_set(new_vm, store, group)
    location = new_vm.location or _location(new_vm, siblings, hosts)
    defaults: dict[str, object] = {"subscription": group[0], "resource_group": group[1], "location": location}
    tables = [("[defaults]", defaults)]
    tables += [("[[subscriptions]]", {"name": known, "id": known}) for known in sorted(subscriptions)]
    tables += [("[[hosts]]", _host_table(host)) for host in hosts]
    tables += [(f"[[{key}s]]", _set_table(new_vm, key, siblings)) for key in _SET_KEYS if getattr(new_vm, key)]
    tables += [("[[vms]]", _vm_table(new_vm, siblings))]
    return "\n".join(line for title, keys in tables for line in (title, *_toml_lines(keys)))


def _subscription_and_group(new_vm: NewVm, usual_group: tuple[str, str] | None) -> tuple[str, str]:
    usual = usual_group or (DefaultsTable().subscription, DefaultsTable().resource_group)
    return new_vm.subscription_id or usual[0], new_vm.resource_group or usual[1]


def _vms_of_same_set(new_vm: NewVm, store: Store, group: tuple[str, str]) -> list[Vm]:
    named = [(key, getattr(new_vm, key).casefold()) for key in _SET_KEYS if getattr(new_vm, key)]
    group_key = (group[0].casefold(), group[1].casefold())
    return [
        vm
        for vm in (store.vms() if named else [])
        if (vm.subscription_id.casefold(), vm.resource_group.casefold()) == group_key
        and all(getattr(vm, key).casefold() == name for key, name in named)
    ]


def _location(new_vm: NewVm, siblings: list[Vm], hosts: list[Host]) -> str:
    if siblings:
        return siblings[0].location
    wanted = new_vm.host.casefold()
    locations = sorted({host.location for host in hosts if not wanted or host.name.casefold() == wanted})
    if len(locations) > 1:
        raise Rejected(
            f"VM {new_vm.name!r} could be in several locations: give its location, {_quoted_choices(locations)}"
        )
    return locations[0] if locations else DefaultsTable().location


def _quoted_choices(locations: list[str]) -> str:
    return " or ".join(repr(location) for location in locations[:5])


def _host_table(host: Host) -> dict[str, object]:
    return {"name": host.name, "location": host.location, "zone": host.zone}


def _set_table(new_vm: NewVm, key: str, siblings: list[Vm]) -> dict[str, object]:
    """Describe the set by the settings of its first VM; the domain counts are at their maximum."""
    table: dict[str, object] = {"name": getattr(new_vm, key), "update_domains": 1000, "fault_domains": 1000}
    if siblings and key != "cloud_service":
        table["auto_approve"] = _auto_approved_operations(siblings[0].auto_approve)
    if siblings and key == "scale_set":
        table["priority"] = siblings[0].priority.value
        table["terminate_notification"] = siblings[0].terminate_notice_min
        table["program"] = list(siblings[0].program)
        table["environment"], table["directory"] = siblings[0].environment, siblings[0].directory
        table["eviction_policy"] = siblings[0].eviction_policy.value if siblings[0].priority == "Spot" else ""
    return table


def _vm_table(new_vm: NewVm, siblings: list[Vm]) -> dict[str, object]:
    table: dict[str, object] = {key: getattr(new_vm, key) for key in _COPIED_FIELDS}
    table["placement_group"] = new_vm.placement_group or (_free_placement_group(siblings) if new_vm.scale_set else "")
    table["priority"] = new_vm.priority.value if new_vm.priority else ""
    table["eviction_policy"] = new_vm.eviction_policy.value if new_vm.eviction_policy else ""
    table["terminate_notification"] = new_vm.terminate_notice_min
    table["auto_approve"] = _auto_approved_operations(new_vm.auto_approve)
    table["tags"] = new_vm.tags
    in_set = any(getattr(new_vm, key) for key in _SET_KEYS)
    for key in ("update_domain", "fault_domain"):
        given = getattr(new_vm, key)
        table[key] = (
            given if given is not None or not in_set else _least_used_domain([getattr(vm, key) for vm in siblings])
        )
    return table


def _auto_approved_operations(approval: AutoApproval) -> list[str]:
    return [operation for operation in ("restart", "redeploy") if getattr(approval, operation)]


def _least_used_domain(taken: list[int]) -> int:
    """Return the domain with the fewest VMs; an unused one only while no domain has two VMs."""
    counts = Counter(taken)
    in_use = max(counts, default=-1) + 1
    domains = in_use if len(taken) > in_use else max(in_use, _DEFAULT_DOMAIN_COUNT)
    return min(range(domains), key=lambda domain: (counts[domain], domain))


def _free_placement_group(siblings: list[Vm]) -> str:
    """Return the first placement group that is not full (spec §7.1), else a new one."""
    counts = Counter(vm.placement_group for vm in siblings)
    free = sorted(group for group, count in counts.items() if count < MAX_PLACEMENT_GROUP)
    return free[0] if free else next(name for name in _placement_group_names() if name not in counts)


def _placement_group_names() -> Iterator[str]:
    number = 0
    while True:
        yield f"pg-{number}"
        number += 1


def _toml_lines(keys: dict[str, object]) -> Iterator[str]:
    """Yield `key = value` lines of TOML without empty values and without a terminate_notification of 0."""
    for key, value in keys.items():
        if value in ("", None, [], {}) or (key == "terminate_notification" and value == 0):
            continue
        yield f"{key} = {_toml_value(value)}"


def _toml_value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_value(str(k))} = {_toml_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
