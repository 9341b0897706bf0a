"""Pure functions over the CPUs in the XML of domains and hosts: what a VM needs from another host."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import msgspec

from forewarn.machines.libvirt.domain_xml import parse_xml

_HOST_CPU_MODES = ("host-passthrough", "maximum")  # the guest sees the CPU of its host as it is


class CpuNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What another host must have to take over a running VM. Either `cpu_xml` or `host_cpu` is set."""

    virt_type: str = ""  # such as kvm
    arch: str = ""  # such as x86_64
    machine: str = ""  # such as pc-q35-7.2
    cpu_xml: str = ""  # the CPU of the domain as libvirt's XML, which another host can be compared with
    host_cpu: str = ""  # the CPU of its host (`host_cpu_identity`), which another host must have exactly


def cpu_needs(domain: str, host_cpu: str) -> str:
    """Return what a running domain needs from the CPU of another host, as JSON; "": nothing, or not known.

    Pass the running XML: a stored one may name no CPU model. A domain that sees its host's CPU needs the same one.
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
    return msgspec.json.decode(text, type=CpuNeeds)


def host_cpu_model(capabilities: str) -> str:
    """Return the CPU model that a host's capabilities XML names; "" if it names none."""
    return parse_xml(capabilities, root_tag="capabilities").findtext("host/cpu/model", "")


def host_cpu_identity(capabilities: str) -> str:
    """Return a text for the CPU of a host, which is equal for equal CPUs; "" if the CPU is not known."""
    cpu = parse_xml(capabilities, root_tag="capabilities").find("host/cpu")
    if cpu is None or not cpu.findtext("model"):
        return ""
    features = sorted(feature.get("name", "") for feature in cpu.findall("feature"))
    return " ".join([cpu.findtext("arch", ""), cpu.findtext("vendor", ""), cpu.findtext("model", ""), *features])


def _encode(needs: CpuNeeds) -> str:
    return msgspec.json.encode(needs).decode()
