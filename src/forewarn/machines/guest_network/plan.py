"""Decides what the host must have for its VMs. Pure: what it has now is an argument."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forewarn.base.tomlfile import toml_value
from forewarn.errors import Rejected
from forewarn.machines.guest_network.interfaces import Attachment, VmInterface
from forewarn.machines.guest_network.ruleset import (
    BRIDGE,
    FAMILIES,
    IP,
    METADATA_ADDRESS,
    TABLE,
    Element,
    SetElements,
    fixed_part,
    read_elements,
)

# Marks and routing tables are numbers of this range, so that they do not clash with others.
_RANGE_START, _RANGE_SIZE = 0x10000000, 0x10000000
RP_FILTER_ALL = "net/ipv4/conf/all/rp_filter"
_MARK_REPLIES = "net/ipv4/fwmark_reflect"
_MARK_CONNECTIONS = "net/ipv4/tcp_fwmark_accept"
_BRIDGE_KIND = "bridge"
_ASSIGNED_BY_LIBVIRT = re.compile(r"vnet\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A network device of the host, as `ip link` shows it."""

    name: str  # the name of the device
    index: int  # changes if the device is created again
    is_up: bool  # it was set up, with or without a cable
    mac: str  # its own, not that of a VM behind it; "": it has none
    kind: str  # the kind of the device, such as tun, veth or bridge; "": a physical one
    master: str  # the device, mostly a bridge, that it is a port of; "": none


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What the host has now, as far as it concerns the metadata address; "our own" was set by `apply`."""

    links: Mapping[str, Link]  # by name
    address_devices: tuple[str, ...]  # the devices that have 169.254.169.254; mostly `lo` or none
    sysctls: Mapping[str, int]  # the values of those that matter here, of all devices, by path below /proc/sys
    rules: frozenset[tuple[int, int]] = frozenset()  # our own routing rules: mark and routing table
    routes: frozenset[tuple[int, str]] = frozenset()  # our own default routes: routing table and device
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)  # our own: family → listing of `nft -j`
    hand_made_tables: tuple[str, ...] = ()  # tables of docs/how-to/network that were loaded by hand, such as `ip NAME`


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerValue:
    """The value that a sysctl had before our first change, to be restored when the plan is removed."""

    value: int  # as it was read
    index: int  # the index of its device at that time: another index now means a new device; 0: no device


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInterface:
    """A named interface of a VM, its device on this host, and the mark and table that identify the VM."""

    interface: VmInterface  # as named
    link: Link | None  # None: the device does not exist yet
    mark: int  # the firewall mark of the VM's packets; 0: a port that is in no bridge yet
    table: int  # the routing table by which refused connections are answered; 0 if the mark is 0

    @property
    def bridge(self) -> str:
        """The name of the bridge that a port is in; "" for a tap, and for a port that is in no bridge yet."""
        is_port = self.interface.attachment is Attachment.PORT
        return self.link.master if self.link is not None and is_port else ""

    @property
    def waits_for(self) -> str:
        """Why the device cannot be set up yet; "" if it can."""
        if self.link is None:
            return "does not exist"
        if self.interface.attachment is Attachment.PORT and not self.link.master:
            return "is in no bridge"
        return "" if self.link.is_up else "is down"

    @property
    def served_device(self) -> str:
        """The device that the service listens on: the tap itself, or the bridge of a port."""
        return self.interface.device if self.interface.attachment is Attachment.TAP else self.bridge


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """What the host must have, besides the metadata address, so that its VMs are identified."""

    # Rules and routes send refusals, the answers to connections of VMs while no service listens, back to the right
    # device.

    interfaces: tuple[PlannedInterface, ...]  # all that were named, in their order, also those with missing devices
    elements: Mapping[str, SetElements]  # nftables family (bridge, ip) → set name → its elements
    sysctls: Mapping[str, int]  # the wanted values, by path below /proc/sys
    rules: frozenset[tuple[int, int]]  # mark and routing table, of devices that are ready
    routes: frozenset[tuple[int, str]]  # routing table and device, of devices that are ready
    warnings: tuple[str, ...]  # sentences for people, about what is possible and not safe

    @property
    def missing(self) -> tuple[str, ...]:
        """The interfaces whose devices do not exist, are down or are in no bridge yet, as clauses."""
        return tuple(f"{each.interface.title} {each.waits_for}" for each in self.interfaces if each.waits_for)


def build_plan(
    interfaces: Iterable[VmInterface], machine: HostState, former: Mapping[str, FormerValue] | None = None
) -> NetworkPlan:
    """Return what the host must have, so that each VM is identified by its device. Changes nothing."""
    # A device that does not exist, is down or is not in its bridge yet gets only those firewall elements that are known
    # without it: build the plan again when it is there.
    planned = tuple(_plan_interface(each, machine.links) for each in interfaces)
    _check_conflicts(planned)
    present = [each for each in planned if not each.waits_for]
    return NetworkPlan(
        interfaces=planned,
        elements={BRIDGE: _bridge_elements(planned), IP: _ip_elements(planned)},
        sysctls=_wanted_sysctls(planned, machine, former or {}),
        rules=frozenset((each.mark, each.table) for each in present),
        routes=frozenset((each.table, each.served_device) for each in present),
        warnings=tuple(_warnings(planned, machine)),
    )


def _plan_interface(interface: VmInterface, links: Mapping[str, Link]) -> PlannedInterface:
    link = links.get(interface.device)
    if interface.attachment is Attachment.TAP:
        _check_tap(interface, link)
        table = _number_for("tap", interface.vm, interface.device)
        return PlannedInterface(interface=interface, link=link, mark=interface.mark or table, table=table)
    if link is None or not link.master:
        return PlannedInterface(interface=interface, link=link, mark=0, table=0)
    bridge = links.get(link.master)
    if bridge is None or bridge.kind != _BRIDGE_KIND:
        raise Rejected(f"{interface.title} is in {link.master}, which is not a Linux bridge: use one, or routed taps")
    # By VM and bridge, not by device: the service's settings stay correct when the VM gets another device, and a
    # device that now belongs to another VM never has the mark of the former one.
    mark = interface.mark or _number_for("port", interface.vm, link.master)
    table = _number_for("bridge", link.master)
    return PlannedInterface(interface=interface, link=link, mark=mark, table=table)


def _check_tap(interface: VmInterface, link: Link | None) -> None:
    """Callers of the whole network behind the device would be taken for the VM if it is not the VM's own."""
    if link is None:
        return
    if link.master:
        raise Rejected(
            f"{interface.title} is a port of {link.master}: name it as a port, with the MAC of the VM, "
            f"or run `ip link set {interface.device} nomaster`"
        )
    if link.kind == _BRIDGE_KIND:
        raise Rejected(f"{interface.title} is a bridge, which all its VMs share: name the port of each VM")
    if not link.kind:
        raise Rejected(f"{interface.title} is a device of the host itself: name the tap of the VM")


def _number_for(*words: str) -> int:
    # It is a hash, so that other words may rarely give the same number.
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return _RANGE_START + int.from_bytes(digest[:8], "big") % _RANGE_SIZE


def _check_conflicts(planned: Iterable[PlannedInterface]) -> None:
    owners: dict[tuple[str, str], VmInterface] = {}
    by_mark: dict[int, PlannedInterface] = {}
    by_table: dict[int, str] = {}
    for each in planned:
        interface = each.interface
        if each.bridge:
            for what, value in (("MAC", interface.mac), *(("address", address) for address in interface.addresses)):
                other = owners.setdefault((each.bridge, value), interface)
                if other is not interface:
                    raise Rejected(
                        f"{other.title} and {interface.title} have the same {what} {value} on bridge {each.bridge}: "
                        "give each its own"
                    )
        if each.mark and by_table.setdefault(each.table, each.served_device) != each.served_device:
            raise Rejected(
                f"devices {by_table[each.table]} and {each.served_device} have the same routing table {each.table}: "
                "rename one of them"
            )
        known = by_mark.setdefault(each.mark, each) if each.mark else each
        same = (known.interface.vm, known.served_device) == (interface.vm, each.served_device)
        if not same:
            raise Rejected(
                f"{known.interface.title} and {interface.title} have the same mark {each.mark:#x}: "
                "give one of them another, with mark = … in a file"
            )


def _bridge_elements(planned: Iterable[PlannedInterface]) -> SetElements:
    ports = [each for each in planned if each.interface.attachment is Attachment.PORT]
    return {
        "marks": frozenset((each.interface.device, each.mark) for each in ports if each.mark),
        "ports": frozenset((each.interface.device,) for each in ports),
        **_own_values(each.interface for each in ports),
    }


def _ip_elements(planned: Iterable[PlannedInterface]) -> SetElements:
    listed = list(planned)
    taps = [each for each in listed if each.interface.attachment is Attachment.TAP]
    return {
        "marks": frozenset((each.interface.device, each.mark) for each in taps),
        "served": frozenset((each.served_device,) for each in listed if each.served_device),
        "taps": frozenset((each.interface.device,) for each in taps),
        "with_mac": frozenset((each.interface.device,) for each in taps if each.interface.mac),
        **_own_values(each.interface for each in taps),
    }


def _own_values(interfaces: Iterable[VmInterface]) -> dict[str, frozenset[Element]]:
    listed = list(interfaces)
    return {
        "macs": frozenset((each.device, each.mac) for each in listed if each.mac),
        "addressed": frozenset((each.device,) for each in listed if each.addresses),
        "addresses": frozenset((each.device, address) for each in listed for address in each.addresses),
    }


def _rp_filter_path(device: str) -> str:
    return f"net/ipv4/conf/{device}/rp_filter"


def device_of(path: str) -> str:
    """Return the device in the path of an rp_filter sysctl, such as net/ipv4/conf/tap0/rp_filter."""
    match = re.fullmatch(r"net/ipv4/conf/([^/]+)/rp_filter", path)
    return match[1] if match and match[1] not in ("all", "default") else ""


def former_values(machine: HostState, known: Mapping[str, FormerValue]) -> dict[str, FormerValue]:
    """Return the values of all sysctls in `machine`, by path, as they were before any change of ours.

    `known` values take precedence, except for a device that was created again since.
    """
    values = {}
    for path, value in machine.sysctls.items():
        link = machine.links.get(device_of(path))
        now = FormerValue(value=value, index=link.index if link else 0)
        recorded = known.get(path)
        values[path] = recorded if recorded is not None and recorded.index == now.index else now
    return values


def _wanted_sysctls(
    planned: Iterable[PlannedInterface], machine: HostState, recorded: Mapping[str, FormerValue]
) -> dict[str, int]:
    """The sysctls to set; the filter of all other devices stays as strict as it was."""
    listed = list(planned)
    served = {each.served_device for each in listed if each.served_device in machine.links}
    former = former_values(machine, recorded)
    strictest = former[RP_FILTER_ALL].value if RP_FILTER_ALL in former else 0
    wanted = {}
    for path, was in former.items():
        name = path.split("/")[-2]
        is_other = path.endswith("/rp_filter") and name != "all" and name not in served
        # Later devices get the value of `default`, so only those of the first time are kept as they were.
        if is_other and was.value < strictest and (RP_FILTER_ALL not in recorded or path in recorded):
            wanted[path] = strictest
    wanted[RP_FILTER_ALL] = 0
    wanted |= {_rp_filter_path(device): 0 for device in sorted(served)}
    wanted[_MARK_REPLIES] = 1
    if any(each.interface.attachment is Attachment.PORT for each in listed):
        wanted[_MARK_CONNECTIONS] = 1
    return wanted


def _warnings(planned: Iterable[PlannedInterface], machine: HostState) -> Iterable[str]:
    listed = list(planned)
    taps = [each for each in listed if each.interface.attachment is Attachment.TAP]
    macs = sorted({each.link.mac for each in taps if each.link is not None})
    if len(macs) > 1:
        yield (
            f"the taps have {len(macs)} different MACs ({', '.join(macs[:3])}{', …' if len(macs) > 3 else ''}): "
            "give all taps of all hosts the same one, or a VM reaches nothing for a minute after a live migration"
        )
    for each in taps:
        if _ASSIGNED_BY_LIBVIRT.fullmatch(each.interface.device):
            yield (
                f"{each.interface.title}: libvirt gives this name to the next VM that starts; "
                "name the device in the domain's XML"
            )
    for each in listed:
        if each.interface.attachment is Attachment.PORT and not each.interface.addresses:
            yield f"{each.interface.title} has no address here, so it can use any: give its addresses"
    for device in ("all", *sorted({each.served_device for each in listed} - {""})):
        value = machine.sysctls.get(f"net/ipv4/conf/{device}/arp_ignore", 0)
        if value:
            yield f"net.ipv4.conf.{device}.arp_ignore is {value}, so the host may not answer for {METADATA_ADDRESS}"


def listener_tables(plan: NetworkPlan) -> list[dict[str, Any]]:
    """Return the `[[listeners]]` tables that the service's settings file needs for this plan."""
    tables: list[dict[str, Any]] = []
    marks: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for each in plan.interfaces:
        if each.interface.attachment is Attachment.TAP:
            tables.append({"by": "device", "device": each.interface.device, "vm": each.interface.vm})
        elif each.mark:
            marks[each.bridge][f"{each.mark:#x}"] = each.interface.vm
    return [*tables, *({"by": "mark", "device": bridge, "marks": marks[bridge]} for bridge in sorted(marks))]


def render_listeners(tables: Iterable[Mapping[str, Any]]) -> str:
    """Return the tables as TOML, to be copied into the service's settings file; "" for none."""
    return "\n".join(
        "[[listeners]]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in table.items())
        for table in tables
    )


# Compares a plan with the machine: which changes are pending, and the differences in words. Pure.

_SET_MEANINGS = {
    "marks": "the mark",
    "ports": "the guard",
    "macs": "the MAC",
    "addressed": "the restriction to its addresses",
    "addresses": "the address",
    "served": "the exemption from connection tracking",
    "taps": "the guard",
    "with_mac": "the restriction to its MAC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What must be changed on this host so that it is as planned; `pending_changes` computes it."""

    ruleset: tuple[str, ...]  # why the firewall's tables must be loaded again, in clauses; (): they need not
    sysctls: Mapping[str, int]  # to be set, by path below /proc/sys
    restored: Mapping[str, int]  # sysctls no longer in the plan, to be set back to these former values, by path
    add_address: bool  # whether loopback must get the metadata address, because no device has it
    added_rules: frozenset[tuple[int, int]]  # routing rules to add: mark and routing table
    deleted_rules: frozenset[tuple[int, int]]  # our own rules to delete: mark and routing table
    added_routes: frozenset[tuple[int, str]]  # default routes to add: routing table and device
    deleted_routes: frozenset[tuple[int, str]]  # our own routes to delete: routing table and device

    def __bool__(self) -> bool:
        return bool(
            self.ruleset or self.sysctls or self.restored or self.add_address or self.added_rules
            or self.deleted_rules or self.added_routes or self.deleted_routes
        )  # fmt: skip


def pending_changes(
    plan: NetworkPlan,
    machine: HostState,
    *,
    former: Mapping[str, FormerValue],
    loaded: Mapping[str, list[dict[str, Any]]],
) -> Changes:
    """Return what must change so that the host (`machine`) is as planned."""
    return Changes(
        ruleset=tuple(_ruleset_differences(plan.elements, machine.tables, loaded)),
        sysctls={path: value for path, value in plan.sysctls.items() if machine.sysctls.get(path) != value},
        restored=restorable_sysctls(machine, {path: was for path, was in former.items() if path not in plan.sysctls}),
        add_address=not machine.address_devices,
        added_rules=plan.rules - machine.rules,
        deleted_rules=machine.rules - plan.rules,
        added_routes=plan.routes - machine.routes,
        deleted_routes=machine.routes - plan.routes,
    )


def restorable_sysctls(machine: HostState, former: Mapping[str, FormerValue]) -> dict[str, int]:
    """Return the former values of sysctls, by path, that differ from today's and can be restored."""
    restored = {}
    for path, was in former.items():
        link = machine.links.get(device_of(path))
        if path in machine.sysctls and machine.sysctls[path] != was.value and was.index == (link.index if link else 0):
            restored[path] = was.value
    return restored


def _ruleset_differences(
    wanted: Mapping[str, SetElements],
    tables: Mapping[str, list[dict[str, Any]]],
    loaded: Mapping[str, list[dict[str, Any]]],
) -> Iterable[str]:
    for family in FAMILIES:
        if family not in tables:
            yield f"the firewall has no table {family} {TABLE}"
            continue
        found = read_elements(tables[family])
        for name, elements in wanted[family].items():
            yield from _element_differences(name, elements, found.get(name, frozenset()))
        if fixed_part(tables[family]) != loaded.get(family):
            yield f"the rules of table {family} {TABLE} are not those that were loaded"


def _element_differences(name: str, wanted: frozenset[Element], found: frozenset[Element]) -> Iterable[str]:
    meaning = _SET_MEANINGS[name]
    for element in sorted(wanted - found):
        yield f"the firewall lacks {meaning} of {_describe_element(element)}"
    for element in sorted(found - wanted):
        yield f"the firewall has {meaning} of {_describe_element(element)}, which is not in the plan"


def _describe_element(element: Element) -> str:
    device, *values = element
    shown = [f"{value:#x}" if isinstance(value, int) else str(value) for value in values]
    return f"{device} ({' '.join(shown)})" if shown else str(device)


def describe_changes(changes: Changes, plan: NetworkPlan, machine: HostState) -> list[str]:
    """Return a clause, without a full stop, for each pending change: what the host has or lacks now."""
    devices = dict(plan.routes | machine.routes)
    lines = list(changes.ruleset)
    for path, value in (*changes.sysctls.items(), *changes.restored.items()):
        lines.append(f"{sysctl_name(path)} is {machine.sysctls.get(path, 'not set')} instead of {value}")
    if changes.add_address:
        lines.append(f"no device has the address {METADATA_ADDRESS}")
    for mark, table in sorted(changes.added_rules):
        lines.append(f"there is no rule for refusals with mark {mark:#x} ({devices.get(table, 'no device')})")
    for mark, table in sorted(changes.deleted_rules):
        lines.append(f"there is a rule for mark {mark:#x} and table {table}, which is not in the plan")
    for table, device in sorted(changes.added_routes):
        lines.append(f"there is no route for refusals to {device} in table {table}")
    for table, device in sorted(changes.deleted_routes):
        lines.append(f"there is a route to {device} in table {table}, which is not in the plan")
    return lines


def sysctl_name(path: str) -> str:
    """Return a path below /proc/sys as sysctl names it: net.ipv4.fwmark_reflect."""
    return ".".join(part.replace(".", "/") for part in path.split("/"))
