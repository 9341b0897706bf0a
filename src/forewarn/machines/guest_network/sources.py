"""Where interfaces are named: options, a TOML file, and the running domains of libvirt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from forewarn.base.tomlfile import read_text_file
from forewarn.base.wording import did_you_mean
from forewarn.errors import Rejected
from forewarn.machines.guest_network.interfaces import (
    Attachment,
    Domain,
    DomainNic,
    InterfaceFile,
    VmInterface,
    checked_interface,
    combine_interfaces,
    parse_domain,
    parse_interface_file,
    parse_reserved_addresses,
)
from forewarn.machines.guest_network.plan import Link
from forewarn.machines.guest_network.record import read_links, run_program

VirshRunner = Callable[[Sequence[str]], str]  # runs virsh with these arguments and returns its output


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedInterfaces:
    """The interfaces that all sources (options, a file, libvirt) name together, at the time of reading."""

    interfaces: tuple[VmInterface, ...]  # each device once, ordered by VM and device
    sources: frozenset[str] = frozenset()  # the file (absolute) and libvirt URIs that were read, even if empty
    notes: tuple[str, ...] = ()  # clauses about interfaces of libvirt that were left out, and why


@dataclass(slots=True, kw_only=True)
class InterfaceSources:
    """Reads the interfaces of options, of a file, and of libvirt's running domains, and caches the latter."""

    given: tuple[VmInterface, ...] = ()  # those of options, parsed
    file: Path | None = None  # None: no file
    libvirt_uris: tuple[str, ...] = ()  # besides those that the file names
    _domains: dict[str, DomainList] = field(default_factory=dict)

    def read(self, *, reuse_domains: bool = False) -> NamedInterfaces:
        """Return the interfaces that the sources name now, combined; the file is read at each call."""
        if not self.given and self.file is None and not self.libvirt_uris:
            raise Rejected("no VM is named: give --tap, --port, --libvirt or --file")
        written = self._read_file()
        uris = tuple(dict.fromkeys((*self.libvirt_uris, *written.libvirt_uris)))
        links = read_links() if uris else {}
        found: list[VmInterface] = [*self.given, *written.interfaces]
        notes: list[str] = []
        for uri in uris:
            if uri not in self._domains or not reuse_domains:
                self._domains[uri] = read_domains(partial(_run_virsh, uri))
            found += [vm_interface(each, links, source=uri) for each in self._domains[uri].interfaces]
            notes += self._domains[uri].skipped
        sources = {*uris, *([str(self.file.absolute())] if self.file is not None else [])}
        return NamedInterfaces(interfaces=combine_interfaces(found), sources=frozenset(sources), notes=tuple(notes))

    def _read_file(self) -> InterfaceFile:
        if self.file is None:
            return InterfaceFile((), ())
        text = read_text_file(self.file, "file", "give another")
        return parse_interface_file(text, str(self.file.absolute()))


@dataclass(frozen=True, slots=True)
class DomainList:
    """The interfaces of all running domains at one libvirt URI, made by `read_domains`."""

    interfaces: tuple[DomainNic, ...]  # those that can be used, domain by domain, as `virsh` lists them
    skipped: tuple[str, ...]  # a clause for each interface that cannot be used, with the reason


def read_domains(virsh: VirshRunner) -> DomainList:
    """Return the interfaces of libvirt's running domains; a domain that ends meanwhile is left out."""
    domains = list(_running_domains(virsh))
    reserved: dict[str, dict[str, str]] = {}
    for network in sorted({each.network for domain in domains for each in domain.interfaces} - {""}):
        try:
            reserved[network] = parse_reserved_addresses(virsh(["net-dumpxml", network]))
        except Rejected:  # a network that was removed while its domains run
            continue
    interfaces = []
    for each in (interface for domain in domains for interface in domain.interfaces):
        reservation = reserved.get(each.network, {}).get(each.mac)
        interfaces.append(each if each.addresses or not reservation else replace(each, addresses=(reservation,)))
    return DomainList(tuple(interfaces), tuple(reason for domain in domains for reason in domain.skipped))


def _run_virsh(uri: str, arguments: Sequence[str]) -> str:
    return run_program("virsh", "-c", uri, *arguments)


def _running_domains(virsh: VirshRunner) -> Iterable[Domain]:
    for name in _domain_names(virsh):
        try:
            xml = virsh(["dumpxml", name])
        except Rejected:
            if name in _domain_names(virsh):
                raise
            continue  # it has ended meanwhile
        yield parse_domain(xml)


def _domain_names(virsh: VirshRunner) -> list[str]:
    return [name.strip() for name in virsh(["list", "--name"]).splitlines() if name.strip()]


def vm_interface(interface: DomainNic, links: Mapping[str, Link], *, source: str) -> VmInterface:
    """Return the interface of a libvirt domain as a VmInterface of the VM with the domain's name."""
    link = links.get(interface.device)
    is_port = interface.is_port if interface.is_port is not None else bool(link and link.master)
    checked = checked_interface(
        vm=interface.domain,
        device=interface.device,
        attachment=Attachment.PORT if is_port else Attachment.TAP,
        mac=interface.mac,
        addresses=interface.addresses,
    )
    return replace(checked, source=source)


def select_fleet_vms(named: NamedInterfaces, fleet: Collection[str], uris: Collection[str]) -> NamedInterfaces:
    """Return a copy with only the interfaces of VMs of the fleet."""
    known = {name.casefold() for name in fleet}
    kept, notes = [], list(named.notes)
    for each in named.interfaces:
        if each.vm.casefold() in known:
            kept.append(each)
        elif each.source in uris:
            notes.append(f"domain {each.vm} is left out: the fleet has no VM of that name")
        else:
            hint = did_you_mean(each.vm, fleet) or "; `forewarn fleet show` lists its VMs"
            raise Rejected(f"the fleet has no VM {each.vm!r}, which {each.attachment} {each.device} names{hint}")
    return replace(named, interfaces=tuple(kept), notes=tuple(dict.fromkeys(notes)))
