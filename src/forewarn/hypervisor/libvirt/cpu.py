"""Pure functions over the CPUs in the XML of domains and hosts: what a VM needs from another host."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import msgspec

from forewarn.hypervisor.libvirt.domain_xml import parse_xml

_HOST_CPU_MODES = ("host-passthrough", "maximum")  # the guest sees the CPU of its host as it is


class CpuNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What the CPU of a running VM needs, as JSON in `VmNeeds.cpu`; has `cpu_xml` or `host_cpu`."""

    virt_type: str = ""  # such as kvm
    arch: str = ""  # such as x86_64
    machine: str = ""  # such as pc-q35-7.2
    cpu_xml: str = ""  # the CPU of the domain, which another host can be compared with
    host_cpu: str = ""  # the CPU of its host, which another one must have too


def cpu_needs(domain: str, host_cpu: str) -> str:
    """Return what a running domain (its XML) on a host with this CPU needs from another one; "": nothing.

    The text is JSON, for `parse_cpu_needs`. `host_cpu` is as `host_cpu_identity` returns it. Rejected for other XML.
    """
    root = parse_xml(domain)
    cpu, os_type = root.find("cpu"), root.find("os/type")
    if cpu is None:
        return ""
    if cpu.get("mode", "") in _HOST_CPU_MODES:
        return _encode(CpuNeeds(host_cpu=host_cpu)) if host_cpu else ""
    if cpu.find("model") is None:
        return ""
    return _encode(
        CpuNeeds(
            virt_type=root.get("type", ""),
            arch=os_type.get("arch", "") if os_type is not None else "",
            machine=os_type.get("machine", "") if os_type is not None else "",
            cpu_xml=ET.tostring(cpu, encoding="unicode"),
        )
    )


def parse_cpu_needs(text: str) -> CpuNeeds:
    """Return what `cpu_needs` has encoded, unless that is ""; msgspec.DecodeError for any other text."""
    return msgspec.json.decode(text, type=CpuNeeds)


def host_cpu_model(capabilities: str) -> str:
    """Return the CPU model that a host's capabilities XML names; "" if none. Rejected for other XML."""
    return parse_xml(capabilities, root_tag="capabilities").findtext("host/cpu/model", "")


def host_cpu_identity(capabilities: str) -> str:
    """Return the CPU of a host (its capabilities XML) with all its features; "" if it is not known.

    It is a text that is equal for equal CPUs: architecture, vendor, model and sorted features. Rejected for other XML.
    """
    cpu = parse_xml(capabilities, root_tag="capabilities").find("host/cpu")
    if cpu is None or not cpu.findtext("model"):
        return ""
    features = sorted(feature.get("name", "") for feature in cpu.findall("feature"))
    return " ".join([cpu.findtext("arch", ""), cpu.findtext("vendor", ""), cpu.findtext("model", ""), *features])


def _encode(needs: CpuNeeds) -> str:
    return msgspec.json.encode(needs).decode()
