"""Parses which VM has which network device on this host, from options and a TOML file. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address
from xml.etree import ElementTree

from forewarn.base.tomlfile import TomlTable, parse_toml, read_number, read_text, read_texts
from forewarn.errors import Rejected

# Reads libvirt's XML: devices of a domain, and addresses that a network reserves. Pure.

_PORT_TYPES = ("network", "bridge")
_EITHER_TYPE = "ethernet"  # a tap of the operator's own, in a bridge or not
_IPV4_FAMILIES = ("ipv4", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainNic:
    """One `<interface>` of a running libvirt domain that has a device on the host."""

    domain: str  # the name of the domain, which is that of the VM
    device: str  # the name of the device on the host
    mac: str  # of the VM, in lower case; "": not given
    addresses: tuple[str, ...]  # IPv4, as the XML gives them or its network reserves them; mostly none
    network: str  # the libvirt network that it is connected to; "": none
    is_port: bool | None  # True: a port of a bridge; None: libvirt does not know, so look at the host's devices


@dataclass(frozen=True, slots=True)
class Domain:
    """What the XML of a running libvirt domain says about its network interfaces."""

    name: str  # the name of the domain, which is that of the VM
    interfaces: tuple[DomainNic, ...]  # those that can be used, in the order of the XML
    skipped: tuple[str, ...]  # a clause for each interface that cannot be used, with the reason


def parse_domain(xml: str) -> Domain:
    """Return the name and interfaces of a running domain from the output of `virsh dumpxml`."""
    root = _parse_xml(xml, "domain")
    name = (root.findtext("name") or "").strip()
    if not name:
        raise Rejected("libvirt's XML of a domain has no name: give the output of `virsh dumpxml`")
    interfaces, skipped = [], []
    for element in root.findall("devices/interface"):
        kind = element.get("type", "")
        device = _attribute_of(element, "target", "dev")
        if kind not in (*_PORT_TYPES, _EITHER_TYPE) or not device:
            mac = _attribute_of(element, "mac", "address") or "without MAC"
            reason = f"type {kind!r} has no bridge port or tap" if device else "it has no device on this host"
            skipped.append(f"interface {mac} of domain {name} is left out: {reason}")
            continue
        interfaces.append(
            DomainNic(
                domain=name,
                device=device,
                mac=_attribute_of(element, "mac", "address").lower(),
                addresses=_addresses_of(element),
                network=_attribute_of(element, "source", "network"),
                is_port=True if kind in _PORT_TYPES else None,
            )
        )
    return Domain(name, tuple(interfaces), tuple(skipped))


def parse_reserved_addresses(xml: str) -> dict[str, str]:
    """Return the IPv4 addresses, by MAC, that a network's DHCP server reserves, from `virsh net-dumpxml`."""
    root = _parse_xml(xml, "network")
    reserved = {}
    for element in root.findall("ip"):
        if element.get("family") not in _IPV4_FAMILIES:
            continue
        for host in element.findall("dhcp/host"):
            mac, address = host.get("mac", "").lower(), host.get("ip", "")
            if mac and address:
                reserved[mac] = address
    return reserved


def _addresses_of(interface: ElementTree.Element) -> tuple[str, ...]:
    """The addresses in `<ip>` elements and in the parameter IP of a filter such as `clean-traffic`."""
    given = [
        element.get("address", "") for element in interface.findall("ip") if element.get("family") in _IPV4_FAMILIES
    ]
    filtered = [
        parameter.get("value", "")
        for parameter in interface.findall("filterref/parameter")
        if parameter.get("name") == "IP"
    ]
    return tuple(dict.fromkeys(address for address in (*given, *filtered) if address))


def _attribute_of(interface: ElementTree.Element, child: str, name: str) -> str:
    element = interface.find(child)
    return "" if element is None else element.get(name, "")


def _parse_xml(xml: str, tag: str) -> ElementTree.Element:
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise Rejected(f"libvirt's XML of a {tag} cannot be read: {error}") from error
    if root.tag != tag:
        raise Rejected(f"libvirt's XML of a {tag} begins with <{root.tag}>: give the XML of a {tag}")
    return root


_DEVICE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,14}")  # IFNAMSIZ; nft reads `*` as a pattern
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_MAX_MARK = 0xFFFFFFFF
_LINK_LOCAL_PREFIX = "169.254."


class Attachment(StrEnum):
    """How the device of a VM is connected to the host: `tap` or `port`."""

    TAP = "tap"  # routed: the device is in no bridge
    PORT = "port"  # the device is a port of a Linux bridge


@dataclass(frozen=True, slots=True, kw_only=True)
class VmInterface:
    """One network device on this host that belongs to one VM, as an option, a file or libvirt names it."""

    vm: str  # the VM's name, as the source writes it
    device: str  # the name of the device on the host
    attachment: Attachment
    mac: str = ""  # of the VM, in lower case; "": not known
    addresses: tuple[str, ...] = ()  # IPv4 addresses of the VM; empty: not known
    mark: int = 0  # the firewall mark that the operator chose; 0: `build_plan` chooses it
    source: str = ""  # the file or libvirt URI that names it; "": options of the command

    @property
    def title(self) -> str:
        """The interface in messages: `port vnet3 of VM web-0`."""
        return f"{self.attachment} {self.device} of VM {self.vm}"


@dataclass(frozen=True, slots=True)
class InterfaceFile:
    """The content of a user's TOML file: interfaces, and the URIs of libvirt whose running domains to add."""

    interfaces: tuple[VmInterface, ...]  # in the order of the file
    libvirt_uris: tuple[str, ...]  # in the order of the file


def parse_option(text: str, attachment: Attachment) -> VmInterface:
    """Return the interface of an option such as `web-0=vnet3,mac=52:54:00:00:00:01,ip=10.0.0.11`."""
    vm, _, rest = text.partition("=")
    device, *settings = rest.split(",")
    example = "web-0=tap-web0" if attachment is Attachment.TAP else "web-0=vnet3,mac=52:54:00:00:00:01,ip=10.0.0.11"
    if not vm.strip() or not device.strip():
        raise Rejected(f"--{attachment} {text!r} does not name a VM and a device: write --{attachment} {example}")
    mac, addresses = "", []
    for setting in settings:
        key, _, value = setting.partition("=")
        if key.strip() == "mac":
            mac = value
        elif key.strip() == "ip":
            addresses.append(value)
        else:
            raise Rejected(f"--{attachment} {text!r}: {setting!r} is unknown: write mac=… or ip=…")
    return checked_interface(vm=vm, device=device, attachment=attachment, mac=mac, addresses=addresses)


def parse_interface_file(text: str, path: str) -> InterfaceFile:
    """Return the interfaces and libvirt URIs in the text of a TOML file; `path` only names it in messages."""
    root = parse_toml(text, path)
    interfaces = [_parse_table(table, path) for table in root.read_tables("interfaces")]
    uris = root.read(read_texts, "libvirt")
    root.reject_unknown_keys()
    root.raise_problems(path)
    return InterfaceFile(tuple(each for each in interfaces if each), uris)


def _parse_table(table: TomlTable, path: str) -> VmInterface | None:
    attachment = Attachment.TAP if table.has("tap") else Attachment.PORT
    if table.has("tap") == table.has("port"):
        table.add_problem("", "an interface has either a tap or a port", 'write tap = "tap-web0" or port = "vnet3"')
        return None
    vm, device = table.read(read_text, "vm"), table.read(read_text, attachment.value)
    mac, addresses = table.read(read_text, "mac"), table.read(read_texts, "addresses")
    mark = table.read(read_number, "mark", 0, 1, _MAX_MARK)
    table.reject_unknown_keys()
    try:
        checked = checked_interface(vm=vm, device=device, attachment=attachment, mac=mac, addresses=addresses)
    except Rejected as error:
        table.add_error("", error)
        return None
    return replace(checked, mark=mark, source=path)


def checked_interface(
    *, vm: str, device: str, attachment: Attachment, mac: str = "", addresses: Iterable[str] = ()
) -> VmInterface:
    # A port needs a MAC, because the rules that keep a VM to its own address begin with it.
    vm, device, mac = vm.strip(), device.strip(), mac.strip().lower()
    if not vm:
        raise Rejected(f"{attachment} {device!r} has no VM: name the VM that it belongs to")
    if not _DEVICE_NAME.fullmatch(device):
        raise Rejected(f"{device!r} of VM {vm} is not the name of a network device: `ip link` lists them")
    if attachment is Attachment.PORT and not mac:
        raise Rejected(f"port {device} of VM {vm} has no MAC: give the VM's own, such as mac=52:54:00:00:00:01")
    if mac and (not _MAC.fullmatch(mac) or int(mac[:2], 16) & 1):
        raise Rejected(f"{mac!r} of VM {vm} is not the MAC of a device: write one such as 52:54:00:00:00:01")
    return VmInterface(
        vm=vm,
        device=device,
        attachment=attachment,
        mac=mac,
        addresses=tuple(sorted({_checked_address(address, vm) for address in addresses})),
    )


def _checked_address(text: str, vm: str) -> str:
    try:
        address = IPv4Address(text.strip())
    except AddressValueError as error:
        raise Rejected(f"{text!r} of VM {vm} is not an IPv4 address: write one such as 10.0.0.11") from error
    if address.is_multicast or address.is_unspecified or str(address).startswith(_LINK_LOCAL_PREFIX):
        raise Rejected(f"{address} cannot be the address of VM {vm}: give the one that its packets come from")
    return str(address)


def combine_interfaces(sources: Iterable[VmInterface]) -> tuple[VmInterface, ...]:
    """Return the interfaces of all sources, each device once, ordered by VM and device."""
    # Two sources may describe the same device of the same VM, if they agree on what both say.
    combined: dict[str, VmInterface] = {}
    for interface in sources:
        known = combined.get(interface.device)
        combined[interface.device] = interface if known is None else _merge(known, interface)
    return tuple(sorted(combined.values(), key=lambda each: (each.vm, each.device)))


def _merge(first: VmInterface, second: VmInterface) -> VmInterface:
    if first.vm != second.vm:
        raise Rejected(f"device {first.device} is named for VM {first.vm} and VM {second.vm}: name only one of them")
    for key in ("attachment", "mac", "addresses", "mark"):
        mine, other = getattr(first, key), getattr(second, key)
        if mine and other and mine != other:
            raise Rejected(
                f"device {first.device} of VM {first.vm} is described twice, with a different {key}: omit one"
            )
    return replace(
        first,
        mac=first.mac or second.mac,
        addresses=first.addresses or second.addresses,
        mark=first.mark or second.mark,
        source=first.source if second.source else "",
    )
