"""Writes a fleet file from the domains of hosts; all but `read_host` is pure.

A domain that cannot be a VM of the fleet, or that several hosts have, is left out, and a note says why.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from forewarn.base.tomlfile import toml_value
from forewarn.core.fleetfile.tables import MAX_NAME_LENGTH, plain_name_error
from forewarn.errors import Rejected
from forewarn.machines.libvirt.domain_state import DomainDefinition, parse_domain
from forewarn.machines.libvirt.session import LibvirtSession

_NAMED_URI = re.compile(r"([^=:/?]+)=([a-z]+(?:\+[a-z0-9]+)?:.+)")


class ImportedVm(msgspec.Struct, frozen=True, kw_only=True):
    """A domain of a libvirt host, as it may become a VM of the fleet."""

    host: str  # the name of its host in the fleet
    is_running: bool  # or paused
    is_stored: bool  # False: transient, so that its host forgets it when it ends
    definition: DomainDefinition  # what its XML says

    @property
    def name(self) -> str:
        """The domain's name, which becomes the VM's."""
        return self.definition.name


class ImportedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A libvirt host and its domains, as `read_host` found them."""

    name: str  # for the fleet
    uri: str  # of its libvirt
    cpu_model: str = ""  # "": not known
    free_memory_mib: int = 0  # for VMs; 0: not known
    domains: tuple[ImportedVm, ...] = ()  # all of them, sorted by name


class ImportedFleet(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts and VMs from which a fleet file is written; `plan_import` makes it."""

    hosts: tuple[ImportedHost, ...]  # in the order in which they were given
    vms: tuple[ImportedVm, ...]  # the domains of all hosts that can be VMs, sorted by name
    notes: tuple[str, ...] = ()  # for people: what was left out or is unusual, and what to do about it


def split_named_uri(text: str) -> tuple[str, str]:
    """Return (name, URI) of a text `NAME=URI`; ("", text) for any other text, such as a URI alone."""
    match = _NAMED_URI.fullmatch(text)
    return (match[1], match[2]) if match else ("", text)


def read_host(session: LibvirtSession, name: str, uri: str) -> ImportedHost:
    """Ask a libvirt host what it has, and return it, with its domains sorted by name. Blocks."""
    host = name or session.hostname().partition(".")[0]
    capacity = session.capacity()
    return ImportedHost(
        name=host,
        uri=uri,
        cpu_model=capacity.cpu_model,
        free_memory_mib=capacity.memory_mib,
        domains=tuple(
            ImportedVm(
                host=host,
                is_running=domain.is_active,
                is_stored=domain.is_stored,
                definition=parse_domain(domain.xml),
            )
            for domain in session.domains()
        ),
    )


def plan_import(hosts: Sequence[ImportedHost]) -> ImportedFleet:
    """Return the fleet that these hosts make: which of their domains become VMs, with notes for people."""
    _check_host_names(hosts)
    found: defaultdict[str, list[ImportedVm]] = defaultdict(list)
    for host in hosts:
        for domain in host.domains:
            found[domain.name.casefold()].append(domain)
    vms, notes = [], []
    for _, same_name in sorted(found.items()):
        vm, note = _choose(same_name)
        vms += [vm] if vm is not None else []
        notes += [note] if note else []
    return ImportedFleet(hosts=tuple(hosts), vms=tuple(vms), notes=tuple(notes))


def _check_host_names(hosts: Sequence[ImportedHost]) -> None:
    uris: dict[str, str] = {}
    for host in hosts:
        if (problem := plain_name_error(host.name, limit=MAX_NAME_LENGTH)) is not None:
            raise Rejected(f"the host at {host.uri} calls itself {host.name!r}, which {problem}: write NAME={host.uri}")
        if (other := uris.get(host.name.casefold())) is not None:
            raise Rejected(f"{other} and {host.uri} are both host {host.name!r}: write NAME=URI for one of them")
        uris[host.name.casefold()] = host.uri


def _choose(same_name: list[ImportedVm]) -> tuple[ImportedVm | None, str]:
    first = same_name[0]
    if (problem := plain_name_error(first.name, limit=MAX_NAME_LENGTH)) is not None:
        return None, f"domain {first.name!r} of host {first.host} is left out: its name {problem}; rename it"
    if len(same_name) == 1:
        note = (
            f"VM {first.name!r} is transient: host {first.host} forgets it when it ends; define it with `virsh define`"
        )
        return first, "" if first.is_stored else note
    hosts = _join(vm.host for vm in same_name)
    if len({vm.name for vm in same_name}) > 1:
        names = _join(repr(vm.name) for vm in same_name)
        return None, f"domains {names} of hosts {hosts} are left out: their names differ only in case; rename one"
    running = [vm for vm in same_name if vm.is_running]
    if len(running) == 1:
        others = _join(vm.host for vm in same_name if vm is not running[0])
        return running[0], (
            f"VM {first.name!r} is defined on hosts {hosts}: it was taken from {running[0].host}, where it runs; "
            f"undefine it on {others}"
        )
    where = f"runs on hosts {_join(vm.host for vm in running)}" if running else f"is off on hosts {hosts}"
    return None, f"VM {first.name!r} {where}, and is left out: keep it on one of them, and undefine it on the others"


def render_fleet_file(found: ImportedFleet) -> str:
    """Return the text of the fleet file (TOML) for this fleet, with comments on what it was made from."""
    lines = [
        "# Written by `forewarn fleet import libvirt`. Edit it as you like: sets, update domains, tags, zones.",
        *(_comment(note) for note in found.notes),
        "",
        "[defaults]",
        '# resource_group = "fleet"',
        '# location = "local"',
        "# tags = { }",
    ]
    for host in found.hosts:
        cpu = f", CPU {host.cpu_model}" if host.cpu_model else ""
        lines += ["", _comment(f"{host.uri}{cpu}"), "[[hosts]]", f"name = {toml_value(host.name)}"]
    for vm in found.vms:
        lines += ["", *map(_comment, _facts(vm)), "[[vms]]"]
        lines += [f"name = {toml_value(vm.name)}", f"host = {toml_value(vm.host)}"]
        if vm.definition.is_windows:
            lines += ['os_type = "Windows"']
    return "\n".join(lines) + "\n"


def render_settings(hosts: Iterable[ImportedHost]) -> str:
    """Return the settings (TOML) by which a service acts on these hosts: `hypervisor`, and their URIs."""
    tables = [f"[libvirt.hosts.{toml_value(host.name)}]\nuri = {toml_value(host.uri)}\n" for host in hosts]
    return "\n".join(['hypervisor = "libvirt"\n', *tables])


def _facts(vm: ImportedVm) -> Iterable[str]:
    definition = vm.definition
    cpus = "1 CPU" if definition.cpus == 1 else f"{definition.cpus} CPUs"
    yield f"{cpus}, {definition.memory_mib} MiB, {'running' if vm.is_running else 'off'}"
    for interface in definition.interfaces:
        parts = (
            interface.mac,
            interface.network and f"on {interface.network}",
            interface.tap and f"as {interface.tap}",
        )
        yield f"interface {' '.join(filter(None, parts))}".rstrip()
    for disk in definition.disks:
        if disk.source:
            yield f"disk {disk.target} {disk.source}{', ephemeral' if disk.is_ephemeral else ''}"


def _comment(text: str) -> str:
    return "# " + "".join(char if char.isprintable() else "�" for char in text)


def _join(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
