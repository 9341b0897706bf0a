"""One VM to add, written as a fleet file: so that it meets the same checks as a whole fleet does.

What is left out is taken from the set it joins, else from where most VMs of the fleet are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from forewarn.core.fleet import MAX_PLACEMENT_GROUP, AutoApproval, EvictionPolicy, Host, Priority, Vm
from forewarn.core.fleetfile.form import Defaults
from forewarn.errors import Rejected
from forewarn.store.seam import Store

_SETS = ("availability_set", "scale_set", "cloud_service")
_USUAL_DOMAINS = 5
_PLAIN = ("name", "zone", "host", "computer_name", "size", "os_type", *_SETS, "address")


class NewVm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A VM to add. What is left out is as with its set, else as with most of the fleet."""

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


def file_for(asked: NewVm, store: Store, *, usual_home: tuple[str, str] | None, subscriptions: Iterable[str]) -> str:
    """The text of a file with this VM, the set it is in, and the hosts that there are.

    `usual_home`: the subscription and resource group that most VMs are in.
    """
    if "{" in asked.name or "}" in asked.name:
        raise Rejected(f"the name {asked.name!r} has braces in it: give the name of one VM, such as 'web-3'")
    hosts = store.hosts()
    home = _home(asked, usual_home)
    siblings = _siblings(asked, store, home)
    location = asked.location or _location(asked, siblings, hosts)
    defaults: dict[str, object] = {"subscription": home[0], "resource_group": home[1], "location": location}
    tables = [("[defaults]", defaults)]
    tables += [("[[subscriptions]]", {"name": known, "id": known}) for known in sorted(subscriptions)]
    tables += [("[[hosts]]", _host(host)) for host in hosts]
    tables += [(f"[[{key}s]]", _set(asked, key, siblings)) for key in _SETS if getattr(asked, key)]
    tables += [("[[vms]]", _vm(asked, siblings))]
    return "\n".join(line for title, keys in tables for line in (title, *_lines(keys)))


def _home(asked: NewVm, usual_home: tuple[str, str] | None) -> tuple[str, str]:
    usual = usual_home or (Defaults().subscription, Defaults().resource_group)
    return asked.subscription_id or usual[0], asked.resource_group or usual[1]


def _siblings(asked: NewVm, store: Store, home: tuple[str, str]) -> list[Vm]:
    """The VMs of the set it joins."""
    named = [(key, getattr(asked, key).casefold()) for key in _SETS if getattr(asked, key)]
    place = (home[0].casefold(), home[1].casefold())
    return [
        vm
        for vm in (store.vms() if named else [])
        if (vm.subscription_id.casefold(), vm.resource_group.casefold()) == place
        and all(getattr(vm, key).casefold() == name for key, name in named)
    ]


def _location(asked: NewVm, siblings: list[Vm], hosts: list[Host]) -> str:
    if siblings:
        return siblings[0].location
    wanted = asked.host.casefold()
    places = sorted({host.location for host in hosts if not wanted or host.name.casefold() == wanted})
    if len(places) > 1:
        raise Rejected(f"VM {asked.name!r} could be in several locations: say which with location, {_or(places)}")
    return places[0] if places else Defaults().location


def _or(places: list[str]) -> str:
    return " or ".join(repr(place) for place in places[:5])


def _host(host: Host) -> dict[str, object]:
    return {"name": host.name, "location": host.location, "zone": host.zone}


def _set(asked: NewVm, key: str, siblings: list[Vm]) -> dict[str, object]:
    """The set as its VMs show it to be."""
    told: dict[str, object] = {"name": getattr(asked, key), "update_domains": 1000, "fault_domains": 1000}
    if siblings and key != "cloud_service":
        told["auto_approve"] = _approvals(siblings[0].auto_approve)
    if siblings and key == "scale_set":
        told["priority"] = siblings[0].priority.value
        told["terminate_notification"] = siblings[0].terminate_notice_min
        told["program"] = list(siblings[0].program)
        told["environment"], told["directory"] = siblings[0].environment, siblings[0].directory
        told["eviction_policy"] = siblings[0].eviction_policy.value if siblings[0].priority == "Spot" else ""
    return told


def _vm(asked: NewVm, siblings: list[Vm]) -> dict[str, object]:
    told: dict[str, object] = {key: getattr(asked, key) for key in _PLAIN}
    told["placement_group"] = asked.placement_group or (_group(siblings) if asked.scale_set else "")
    told["priority"] = asked.priority.value if asked.priority else ""
    told["eviction_policy"] = asked.eviction_policy.value if asked.eviction_policy else ""
    told["terminate_notification"] = asked.terminate_notice_min
    told["auto_approve"] = _approvals(asked.auto_approve)
    told["tags"] = asked.tags
    in_set = any(getattr(asked, key) for key in _SETS)
    for key in ("update_domain", "fault_domain"):
        given = getattr(asked, key)
        told[key] = given if given is not None or not in_set else _domain([getattr(vm, key) for vm in siblings])
    return told


def _approvals(approval: AutoApproval) -> list[str]:
    return [word for word in ("restart", "redeploy") if getattr(approval, word)]


def _domain(taken: list[int]) -> int:
    """The least crowded domain. Where one is crowded already, the set has no more than those that are in use."""
    crowd = Counter(taken)
    in_use = max(crowd, default=-1) + 1
    domains = in_use if len(taken) > in_use else max(in_use, _USUAL_DOMAINS)
    return min(range(domains), key=lambda domain: (crowd[domain], domain))


def _group(siblings: list[Vm]) -> str:
    """The first placement group with room (spec §7.1), else a new one."""
    crowd = Counter(vm.placement_group for vm in siblings)
    free = sorted(group for group, count in crowd.items() if count < MAX_PLACEMENT_GROUP)
    return free[0] if free else next(name for name in _numbered_groups() if name not in crowd)


def _numbered_groups() -> Iterator[str]:
    number = 0
    while True:
        yield f"pg-{number}"
        number += 1


def _lines(keys: dict[str, object]) -> Iterator[str]:
    """TOML as far as it is needed: what is empty is left out, and 0 where it stands for nothing."""
    for key, value in keys.items():
        if value in ("", None, [], {}) or (key == "terminate_notification" and value == 0):
            continue
        yield f"{key} = {_toml(value)}"


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
