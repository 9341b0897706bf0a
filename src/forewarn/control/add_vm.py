"""Writes a fleet file for one VM to add, so that the VM passes the same checks as a whole fleet file.

A missing location, domain or placement group comes from the set that the VM joins; its VMs store how many domains the
fleet file declared for it. A missing subscription or resource group is the one that most VMs are in. The rest has the
defaults of a fleet file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from forewarn.core.fleet import MAX_PLACEMENT_GROUP, AutoApproval, EvictionPolicy, Host, Priority, Vm
from forewarn.core.fleetfile.problems import FleetFileProblem
from forewarn.core.fleetfile.tables import AvailabilitySetTable, CloudServiceTable, DefaultsTable, ScaleSetTable
from forewarn.core.limits import Name, NonEmptyText, Tags, WholeNumber
from forewarn.errors import Rejected
from forewarn.store.interface import Store

# Phrases about a fleet file in its problems, and the phrases about one VM that replace them.
_VM_WORDS = (
    (re.compile(r"is not declared\b( in the VM's resource group)?"), r"does not exist\1"),
    (re.compile(r",( from| first on)? line \d+"), ""),
    (re.compile(r"\bdeclare it with \[\[\w+\]\](, name and id)?"), "name one that exists"),
    (
        re.compile(r"\bdeclare some with \[\[hosts\]\], or change.*"),
        "add a host there, or give another location or zone",
    ),
    (re.compile(r"\bmove auto_approve to the\b"), "leave it out, and set it for the"),
    (re.compile(r"give one of them another address in the file"), "give it another address, or none"),
    (re.compile(r"give one of them another"), "give it another"),
    (re.compile(r", or write a smaller count"), ""),
)
_SET_KEYS = ("availability_set", "scale_set", "cloud_service")
_DOMAIN_KEYS = ("update_domain", "fault_domain")
_SET_TABLES = {"availability_set": AvailabilitySetTable, "scale_set": ScaleSetTable, "cloud_service": CloudServiceTable}
_COPIED_FIELDS = ("name", "zone", "host", "computer_name", "size", "os_type", *_SET_KEYS, "address")


class NewVm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A VM to add. Empty fields are filled in from its set, the rest of the fleet, and the defaults.

    Sets, hosts and groups are given by name; a set that never had a VM is a new one.
    """

    name: NonEmptyText  # unique in its resource group, ignoring case
    subscription_id: Name = ""  # "": that of most VMs; the same for the resource group
    resource_group: Name = ""  # "": that of most VMs
    location: Name = ""  # "": that of the VMs of its set, else of its host, else the only one of all hosts
    zone: Name = ""  # "": none; it must be that of its host
    host: Name = ""  # "": one is chosen
    computer_name: Name = ""  # "": its name
    size: Name = ""  # "": Standard_D2s_v5
    os_type: Literal["Linux", "Windows", ""] = ""  # "": Linux
    availability_set: Name = ""  # "": in none; at most one of availability set, scale set and cloud service
    scale_set: Name = ""  # "": in none
    placement_group: Name = ""  # of the scale set; "": the first that is not full, else a new one
    cloud_service: Name = ""  # "": in none
    # None: the one with the fewest VMs of its set (of its placement group, in a scale set), the lowest of several; 0 in
    # no set
    update_domain: Annotated[int, Meta(ge=0, lt=1000)] | None = None  # from 0; None: one with few VMs of its set
    fault_domain: Annotated[int, Meta(ge=0, lt=1000)] | None = None  # from 0; None: one with few VMs of its set
    priority: Priority | None = None  # None: that of its scale set, else Regular
    eviction_policy: EvictionPolicy | None = None  # None: that of its scale set, else Deallocate
    terminate_notice_min: WholeNumber = 0  # 5 to 15 minutes; 0: that of its scale set, else no terminate notification
    auto_approve: AutoApproval = AutoApproval()  # only for a VM in no set; others have that of their set
    tags: Tags = {}  # all that it gets
    address: Name = ""  # an IP address; "": none, but a lab chooses a loopback address


def vm_problem_text(problem: FleetFileProblem) -> str:
    """Return a problem and its remedy as one sentence, in words for one VM instead of a fleet file."""
    text = f"{problem.message}: {problem.remedy}"
    for pattern, words in _VM_WORDS:
        text = pattern.sub(words, text)
    return text


def fleet_file_for(
    new_vm: NewVm, store: Store, *, usual_group: tuple[str, str] | None, subscriptions: Iterable[str]
) -> str:
    """Return the text of a fleet file (TOML) with this VM, its set, the known subscriptions and all hosts."""
    if "{" in new_vm.name or "}" in new_vm.name:
        raise Rejected(f"the name {new_vm.name!r} contains braces: give the name of one VM, such as 'web-3'")
    hosts = store.hosts()
    group = _subscription_and_group(new_vm, usual_group)
    joined = _joined_set(new_vm, store, group)
    _require_existing_domains(new_vm, joined)
    location = new_vm.location or _location(new_vm, joined, hosts)
    defaults: dict[str, object] = {"subscription": group[0], "resource_group": group[1], "location": location}
    tables = [("[defaults]", defaults)]
    tables += [("[[subscriptions]]", {"name": known, "id": known}) for known in sorted(subscriptions)]
    tables += [("[[hosts]]", _host_table(host)) for host in hosts]
    tables += [(f"[[{key}s]]", _set_table(new_vm, key, joined)) for key in _SET_KEYS if getattr(new_vm, key)]
    tables += [("[[vms]]", _vm_table(new_vm, joined))]
    return "\n".join(line for title, keys in tables for line in (title, *_toml_lines(keys)))


def _subscription_and_group(new_vm: NewVm, usual_group: tuple[str, str] | None) -> tuple[str, str]:
    usual = usual_group or (DefaultsTable().subscription, DefaultsTable().resource_group)
    return new_vm.subscription_id or usual[0], new_vm.resource_group or usual[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _JoinedSet:
    """The set or service that a new VM joins: its present VMs, and how many domains of each kind it has."""

    vms: tuple[Vm, ...]
    first: Vm | None  # a VM with the settings of the set; of a set without VMs, the last removed one; None: a new set
    domain_counts: dict[str, int]  # by key of the VM: "update_domain", "fault_domain"


def _joined_set(new_vm: NewVm, store: Store, group: tuple[str, str]) -> _JoinedSet | None:
    named = [(key, getattr(new_vm, key).casefold()) for key in _SET_KEYS if getattr(new_vm, key)]
    if not named:
        return None
    group_key = (group[0].casefold(), group[1].casefold())
    known = [
        vm
        for vm in store.vms(removed=True)
        if (vm.subscription_id.casefold(), vm.resource_group.casefold()) == group_key
        and all(getattr(vm, key).casefold() == name for key, name in named)
    ]
    present = tuple(vm for vm in known if vm.removed_at is None)
    removed = [vm for vm in known if vm.removed_at is not None]
    removed.sort(key=lambda vm: vm.removed_at or 0.0, reverse=True)  # the last removed one first
    table = _SET_TABLES[named[0][0]](name="set")
    return _JoinedSet(
        vms=present,
        first=next(iter([*present, *removed]), None),
        domain_counts={
            key: _declared_domains(present or removed[:1], key)
            or _declared_domains(known, key)
            or _likely_domains(present, key, default=getattr(table, f"{key}s"), given=getattr(new_vm, key))
            for key in _DOMAIN_KEYS
        },
    )


def _declared_domains(vms: Sequence[Vm], key: str) -> int:
    return max((getattr(vm, f"{key}_count") for vm in vms), default=0)


def _likely_domains(vms: Sequence[Vm], key: str, *, default: int, given: int | None) -> int:
    # Once a domain has two VMs, the set has no domain that is not in use.
    in_use = 1 + max((getattr(vm, key) for vm in vms), default=-1)
    likely = in_use if len(vms) > in_use else max(in_use, default)
    return likely if given is None else max(likely, given + 1)


def _require_existing_domains(new_vm: NewVm, joined: _JoinedSet | None) -> None:
    for key, count in joined.domain_counts.items() if joined else ():
        given, label = getattr(new_vm, key), key.replace("_", " ")
        if given is not None and given >= count:
            raise Rejected(
                f"VM {new_vm.name!r} cannot be in {label} {given}: its set has {count} {label}s, counted from 0; "
                f"give a lower number, or declare more {label}s in the fleet file"
            )


def _location(new_vm: NewVm, joined: _JoinedSet | None, hosts: list[Host]) -> str:
    if joined and joined.vms:
        return joined.vms[0].location
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


def _set_table(new_vm: NewVm, key: str, joined: _JoinedSet | None) -> dict[str, object]:
    assert joined is not None  # the VM names this set
    table: dict[str, object] = {"name": getattr(new_vm, key)}
    table |= {f"{domain}s": count for domain, count in joined.domain_counts.items()}
    first = joined.vms[0] if joined.vms else None
    if joined.first and key != "cloud_service":
        table["auto_approve"] = _auto_approved_operations(joined.first.auto_approve)
        table["approve_all_down"] = joined.first.approves_all_down
        table["narrow_delivery"] = joined.first.narrow_delivery
    if joined.first and key == "scale_set":
        table["orchestration"] = joined.first.orchestration.value
    if first and key == "scale_set":
        table["priority"] = first.priority.value
        table["terminate_notification"] = first.terminate_notice_min
        table["program"] = list(first.program)
        table["environment"], table["directory"] = first.environment, first.directory
        table["eviction_policy"] = first.eviction_policy.value if first.priority == "Spot" else ""
    return table


def _vm_table(new_vm: NewVm, joined: _JoinedSet | None) -> dict[str, object]:
    siblings = joined.vms if joined else ()
    has_groups = bool(new_vm.scale_set) and not (joined and joined.first and joined.first.is_flexible)
    placement_group = new_vm.placement_group or (_free_placement_group(siblings) if has_groups else "")
    table: dict[str, object] = {key: getattr(new_vm, key) for key in _COPIED_FIELDS}
    table["placement_group"] = placement_group
    table["priority"] = new_vm.priority.value if new_vm.priority else ""
    table["eviction_policy"] = new_vm.eviction_policy.value if new_vm.eviction_policy else ""
    table["terminate_notification"] = new_vm.terminate_notice_min
    table["auto_approve"] = _auto_approved_operations(new_vm.auto_approve)
    table["tags"] = new_vm.tags
    table |= {key: getattr(new_vm, key) for key in _DOMAIN_KEYS}
    neighbours = [vm for vm in siblings if vm.placement_group.casefold() == placement_group.casefold()]
    for key, count in joined.domain_counts.items() if joined else ():
        if table[key] is None:
            table[key] = _least_used_domain([getattr(vm, key) for vm in neighbours], count)
    return table


def _auto_approved_operations(approval: AutoApproval) -> list[str]:
    return [operation for operation in ("restart", "redeploy") if getattr(approval, operation)]


def _least_used_domain(taken: list[int], count: int) -> int:
    vms_per_domain = Counter(taken)
    return min(range(count), key=lambda domain: (vms_per_domain[domain], domain))


def _free_placement_group(siblings: Sequence[Vm]) -> str:
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
    for key, value in keys.items():
        if value in ("", None, [], {}) or (key == "terminate_notification" and value == 0):
            continue
        yield f"{key} = {_toml_value(value)}"


def _toml_value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_value(str(k))} = {_toml_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
