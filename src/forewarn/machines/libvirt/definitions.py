"""Definitions of domains on their way between hosts, their copies, and checks before a domain is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

import msgspec

from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.machines.driver import HostUnreachable, MachineState, VmNeeds
from forewarn.machines.libvirt.definition_copies import DefinitionCopies
from forewarn.machines.libvirt.disks import (
    delete_disks,
    ephemeral_disks,
    owned_disks,
    require_new_disks,
    volumes_of,
)
from forewarn.machines.libvirt.domain_state import (
    MARK_NAMESPACE,
    MovedDomain,
    MoveMark,
    machine_state,
    parse_domain,
    parse_mark,
    with_own_metadata,
)
from forewarn.machines.libvirt.hosts import LibvirtHosts
from forewarn.machines.libvirt.session import STORED, LibvirtFailure, LibvirtSession

# What libvirt operations check before they change a domain: its state, and the memory of the host.


def state_of(session: LibvirtSession, vm: str) -> MachineState:
    """Return the state of the VM on the host of this session; ABSENT if the host does not know it."""
    status = session.status(vm)
    return MachineState.ABSENT if status is None else machine_state(status)


def require_memory(session: LibvirtSession, host: str, vm: str, xml: str) -> None:
    """Raise Refused if a VM, by its definition `xml`, needs more memory than the host has free."""
    needed, free = parse_domain(xml).memory_mib, session.free_memory_mib()
    if needed > free:
        raise Refused(f"host {host} has {free} MiB of memory left, but VM {vm!r} needs {needed} MiB")


def require_state(
    session: LibvirtSession, host: str, vm: str, what: str, *allowed: MachineState, done: MachineState | None = None
) -> bool:
    """Return True if the VM is in one of the allowed states, and False if it is in state `done` already."""
    state = state_of(session, vm)
    if state is done:
        return False
    if state not in allowed:
        wanted = " or ".join(allowed)
        raise Refused(f"VM {vm!r} is {state} on host {host}, so the host cannot {what} it: the VM must be {wanted}")
    return True


class DomainDefinitions:
    """Reads, copies and defines domains on libvirt hosts, with the volumes of their ephemeral disks."""

    # Each definition that is read or passed in is copied to `copies`; the copy is used when the host does not answer,
    # refuses or has lost the domain.

    def __init__(self, hosts: LibvirtHosts, copies: DefinitionCopies) -> None:
        self._hosts = hosts
        self._copies = copies

    async def copy(self, host: str, vm: str, to_host: str, *, fresh_ephemeral_disk: bool) -> None:
        """Define the VM on `to_host`, OFF there, as on `host`, or as `host` had it when it last answered."""
        xml = await self._xml(host, vm)
        disks = ephemeral_disks(xml) if fresh_ephemeral_disk else []
        volumes = await self._volumes(host, vm, disks) if disks else {}
        await self._define(to_host, vm, MovedDomain(xml, volumes), disks)

    async def read(self, host: str, vm: str) -> bytes:
        """Return the XML of the domain and of its ephemeral disks' volumes, as JSON (`MovedDomain`)."""
        xml = await self._xml(host, vm)
        return msgspec.json.encode(MovedDomain(xml, await self._volumes(host, vm, ephemeral_disks(xml))))

    async def define(
        self, host: str, vm: str, definition: bytes, *, from_host: str, fresh_ephemeral_disk: bool
    ) -> None:
        """Define the VM on `host`, OFF there, as `read` described it on `from_host`."""
        xml = "" if definition else self._copies.load(from_host, vm)
        if xml is None:
            raise Refused(f"host {host} has no copy of the definition of VM {vm!r} on host {from_host}: define it here")
        domain = msgspec.json.decode(definition, type=MovedDomain) if definition else MovedDomain(xml)
        self._copies.save(from_host, vm, domain.xml)
        self._copies.save_all(from_host, domain.volumes)
        await self._define(host, vm, domain, ephemeral_disks(domain.xml) if fresh_ephemeral_disk else [])

    async def delete_disks_everywhere(self, vm: str) -> None:
        """Delete the disks of a VM that is on no host, on each host that has some of them."""
        definition = self._copies.load("", vm)
        if definition is None:
            return
        paths = owned_disks(definition)
        left = set(paths)
        problem: ForewarnError | None = None
        if not self._hosts.names:
            problem = Refused(f"VM {vm!r} is on no host, and the settings name no host that could delete its disks")
        for host in self._hosts.names:
            work = partial(delete_disks, host=host, vm=vm, paths=paths)
            try:
                left -= set(await self._hosts.run(host, vm, "remove", work, is_exclusive=True))
            except ForewarnError as error:
                problem = error
        if left and problem is not None:
            raise problem
        self._copies.delete("", vm)

    def kept_vms(self) -> dict[str, VmNeeds]:
        """Return the needs of VMs that were removed with their disks kept, by name; only memory is known."""
        needs = {}
        for vm, definition in self._copies.load_all("").items():
            with contextlib.suppress(Rejected):
                needs[vm] = VmNeeds(memory_mib=parse_domain(definition).memory_mib)
        return needs

    async def _xml(self, host: str, vm: str) -> str:
        if not host:
            if (last := self._copies.load("", vm)) is None:
                raise Refused(f"VM {vm!r} is on no host, and no definition of it is kept: define it on a host")
            return last
        name = self._hosts.connection(host).name
        try:
            xml = await self._hosts.run(host, vm, "copy", lambda session: session.stored_xml(vm))
        except (HostUnreachable, Refused):
            if (copy := self._copies.load(name, vm)) is None:
                raise
            return copy
        self._copies.save(name, vm, xml)
        return xml

    async def _volumes(self, host: str, vm: str, paths: Sequence[str]) -> dict[str, str]:
        """Return the XML of these volumes of the host, by path, or copies of it; without those nobody knows."""
        kept = {path: self._copies.load_from_any_host(host, path) for path in paths}
        found = {path: volume for path, volume in kept.items() if volume is not None}
        if host:
            with contextlib.suppress(ForewarnError):
                found |= await self._hosts.run(host, vm, "look at", lambda session: volumes_of(session, paths))
        return found

    async def _define(self, to_host: str, vm: str, domain: MovedDomain, disks: Sequence[str]) -> None:
        xml, volumes = domain.xml, domain.volumes

        def work(session: LibvirtSession) -> None:
            move, mark = None, None
            require_new_disks(session, self._copies, self._hosts.connection(to_host).name, vm, disks, volumes)
            match state_of(session, vm):
                case MachineState.ABSENT:
                    pass
                case MachineState.RECEIVED:
                    return
                case MachineState.RUNNING | MachineState.PAUSED | MachineState.HALTED as state:
                    raise Refused(f"VM {vm!r} is {state} on host {to_host} already: check which of the two is right")
                case state:
                    theirs, ours = parse_domain(session.stored_xml(vm)).uuid, parse_domain(xml).uuid
                    if theirs != ours:
                        raise Refused(
                            f"host {to_host} has another VM {vm!r}, with UUID {theirs} instead of {ours}: rename one"
                        )
                    move = MoveMark.RECEIVING if state is MachineState.RECEIVING else None
                    mark = parse_mark(session.metadata(vm, MARK_NAMESPACE, STORED))
            require_memory(session, to_host, vm, xml)
            session.define(with_own_metadata(xml, mark=mark, move=move))

        await self._hosts.run(to_host, vm, "define", work)


def copy_all_definitions(copies: DefinitionCopies, host: str, session: LibvirtSession) -> None:
    """Copy the definition of each stored domain of the host, and the volumes of its ephemeral disks."""
    for domain in session.domains():
        if domain.is_stored:
            definition = session.stored_xml(domain.name)
            copies.save(host, domain.name, definition)
            with contextlib.suppress(LibvirtFailure):  # its storage does not answer: the VMs still count
                copies.save_all(host, volumes_of(session, ephemeral_disks(definition)))
