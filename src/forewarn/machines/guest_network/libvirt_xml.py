"""Reads libvirt's XML: devices of a domain, and addresses that a network reserves. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

from forewarn.errors import Rejected

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
