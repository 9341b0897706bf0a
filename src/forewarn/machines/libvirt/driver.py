"""Implements `MachineDriver` on libvirt: each operation looks at the VM, then does one thing.

A VM is the domain of the same name. Its mark and the progress of a live migration are stored in the domain's metadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path

from forewarn.core.observation import ObservedMachine
from forewarn.errors import Refused
from forewarn.machines.driver import FreeCapacity, MachineMark, MachineState, MigrationProgress, VmNeeds
from forewarn.machines.fence_command import run_fence_command
from forewarn.machines.libvirt.connection import DomainChange, LibvirtHost, operation_error
from forewarn.machines.libvirt.definition_copies import DefinitionCopies
from forewarn.machines.libvirt.definitions import DomainDefinitions, copy_all_definitions
from forewarn.machines.libvirt.disks import delete_disks as delete_disks_of_vm
from forewarn.machines.libvirt.disks import (
    empty_ephemeral_disks,
    ephemeral_disks,
    owned_disks,
    renew_os_disk,
    restore_ephemeral_disks,
    volumes_of,
)
from forewarn.machines.libvirt.domain_checks import require_memory, require_state, state_of
from forewarn.machines.libvirt.domain_state import observed_machine
from forewarn.machines.libvirt.domain_xml import (
    MARK_NAMESPACE,
    MOVE_NAMESPACE,
    MoveMark,
    mark_element,
    move_element,
    parse_mark,
)
from forewarn.machines.libvirt.failure import OPERATION_INVALID, LibvirtFailure
from forewarn.machines.libvirt.hosts import LibvirtHosts
from forewarn.machines.libvirt.live_migration import LiveMigrations
from forewarn.machines.libvirt.session import LIVE, STORED, LibvirtSession


class LibvirtDriver:
    """Performs operations on the domains of libvirt hosts; implements `MachineDriver`."""

    # A VM is the domain with exactly its name; names of hosts ignore letter case. `definitions` is a directory for
    # copies of the VMs' definitions; None: no copies.

    can_reimage = True

    def __init__(self, hosts: Mapping[str, LibvirtHost], definitions: Path | None) -> None:
        self._copies = DefinitionCopies(definitions)
        self._hosts = LibvirtHosts(hosts, on_open=partial(copy_all_definitions, self._copies))
        self._definitions = DomainDefinitions(self._hosts, self._copies)
        self._migrations = LiveMigrations(on_end=self._hosts.changes.note)

    @property
    def hosts(self) -> tuple[str, ...]:
        return self._hosts.names

    async def observe(self, host: str) -> dict[str, ObservedMachine]:
        listing = await self._hosts.run(host, "", "look at", lambda session: session.listing())
        return {domain.name: observed_machine(domain) for domain in listing}

    async def changed_hosts(self) -> AsyncGenerator[str, None]:
        async with contextlib.aclosing(self.changes()) as changes:
            async for change in changes:
                yield change.host

    async def state(self, host: str, vm: str) -> MachineState:
        self._hosts.changes.forget(host, vm)
        return await self._hosts.run(host, vm, "look at", lambda session: state_of(session, vm))

    async def stop_reason(self, host: str, vm: str) -> str:
        return await self._hosts.run(host, vm, "look at", lambda session: session.stop_reason(vm))

    async def wait_for_change(self, host: str, vm: str, *, within_s: float) -> bool:
        return await self._hosts.changes.wait_for(host, vm, within_s=within_s)

    async def pause(self, host: str, vm: str) -> None:
        def work(session: LibvirtSession) -> None:
            if require_state(session, host, vm, "pause", MachineState.RUNNING, done=MachineState.PAUSED):
                session.set_metadata(vm, MOVE_NAMESPACE, None, LIVE)
                session.suspend(vm)

        await self._hosts.run(host, vm, "pause", work)

    async def resume(self, host: str, vm: str) -> None:
        def work(session: LibvirtSession) -> None:
            paused = (MachineState.PAUSED, MachineState.RECEIVED, MachineState.HALTED)
            if require_state(session, host, vm, "resume", *paused, done=MachineState.RUNNING):
                session.resume(vm)
                session.set_metadata(vm, MOVE_NAMESPACE, None, LIVE)

        await self._hosts.run(host, vm, "resume", work)

    async def reset(self, host: str, vm: str) -> None:
        def work(session: LibvirtSession) -> None:
            if require_state(session, host, vm, "reset", MachineState.PAUSED, MachineState.HALTED):
                session.reset(vm)

        await self._hosts.run(host, vm, "reset", work)

    async def press_power_button(self, host: str, vm: str) -> None:
        def work(session: LibvirtSession) -> None:
            if require_state(session, host, vm, "shut down", MachineState.RUNNING, done=MachineState.OFF):
                session.press_power_button(vm)

        await self._hosts.run(host, vm, "shut down", work)

    async def power_on(self, host: str, vm: str, *, fresh_ephemeral_disk: bool = False) -> None:
        def work(session: LibvirtSession) -> None:
            if state_of(session, vm) is MachineState.HALTED:
                return  # it was started, and has an error
            if not require_state(session, host, vm, "start", MachineState.OFF, done=MachineState.RUNNING):
                return
            make_disks = empty_ephemeral_disks if fresh_ephemeral_disk else restore_ephemeral_disks
            make_disks(session, self._copies, self._hosts.connection(host).name, vm)
            session.set_metadata(vm, MOVE_NAMESPACE, None, STORED)
            session.create(vm)

        await self._hosts.run(host, vm, "start", work, is_exclusive=True)

    async def power_off(self, host: str, vm: str) -> None:
        def work(session: LibvirtSession) -> None:
            if session.is_active(vm):
                try:
                    session.destroy(vm)
                except LibvirtFailure as failure:
                    if failure.code != OPERATION_INVALID:  # it has ended meanwhile
                        raise
            match state_of(session, vm):
                case MachineState.SENT:
                    session.set_metadata(vm, MOVE_NAMESPACE, move_element(MoveMark.ENDED), STORED)
                case MachineState.RECEIVING:
                    session.set_metadata(vm, MOVE_NAMESPACE, None, STORED)
                case _:
                    pass

        await self._hosts.run(host, vm, "power off", work)

    async def remove(self, host: str, vm: str, *, delete_disks: bool) -> None:
        if not host:
            if delete_disks:
                await self._definitions.delete_disks_everywhere(vm)
            return

        def work(session: LibvirtSession) -> None:
            if not require_state(session, host, vm, "remove", MachineState.OFF, done=MachineState.ABSENT):
                return
            definition = session.stored_xml(vm)
            if delete_disks:
                delete_disks_of_vm(session, host, vm, owned_disks(definition))
                self._copies.delete("", vm)
            else:
                self._copies.save("", vm, definition)
                self._copies.save_all("", volumes_of(session, ephemeral_disks(definition)))
            session.undefine(vm)
            self._copies.delete(self._hosts.connection(host).name, vm)

        await self._hosts.run(host, vm, "remove", work, is_exclusive=True)

    async def reimage(self, host: str, vm: str) -> None:
        def work(session: LibvirtSession) -> None:
            if require_state(session, host, vm, "reimage", MachineState.OFF):
                renew_os_disk(session, self._copies, self._hosts.connection(host).name, vm)

        await self._hosts.run(host, vm, "reimage", work, is_exclusive=True)

    async def copy_definition(
        self, host: str, vm: str, to_host: str, *, fresh_ephemeral_disk: bool = False, then_receives: bool = False
    ) -> None:
        await self._definitions.copy(host, vm, to_host, fresh_ephemeral_disk=fresh_ephemeral_disk)

    async def read_definition(self, host: str, vm: str) -> bytes:
        return await self._definitions.read(host, vm)

    async def define(
        self, host: str, vm: str, definition: bytes, *, from_host: str, fresh_ephemeral_disk: bool = False
    ) -> None:
        await self._definitions.define(
            host, vm, definition, from_host=from_host, fresh_ephemeral_disk=fresh_ephemeral_disk
        )

    async def prepare_to_receive(self, to_host: str, vm: str) -> None:
        def work(session: LibvirtSession) -> None:
            if not require_state(session, to_host, vm, "receive", MachineState.OFF, done=MachineState.RECEIVING):
                return
            require_memory(session, to_host, vm, session.stored_xml(vm))
            session.set_metadata(vm, MOVE_NAMESPACE, move_element(MoveMark.RECEIVING), STORED)

        await self._hosts.run(to_host, vm, "receive", work)

    async def send(self, host: str, vm: str, to_host: str) -> None:
        if self._migrations.is_active(host, vm) or await self.state(host, vm) is MachineState.SENT:
            return
        if (state := await self.state(to_host, vm)) is not MachineState.RECEIVING:
            raise Refused(f"VM {vm!r} is {state} on host {to_host}, so host {host} cannot send it: prepare it there")
        source, target = self._hosts.connection(host), self._hosts.connection(to_host)
        try:
            await self._migrations.begin(source, target, vm)
        except LibvirtFailure as failure:
            raise operation_error(host, vm, "send", failure) from failure

    async def receive_address(self, host: str, vm: str) -> str:
        return ""

    async def send_to(self, host: str, vm: str, to_host: str, address: str) -> None:
        await self.send(host, vm, to_host)

    async def migration(self, host: str, vm: str) -> MigrationProgress:
        progress = await self._hosts.run(host, vm, "look at", lambda session: session.progress(vm))
        return self._migrations.complete(host, vm, progress)

    async def cancel_send(self, host: str, vm: str) -> None:
        try:
            await self._migrations.cancel(self._hosts.connection(host), vm)
        except LibvirtFailure as failure:
            raise operation_error(host, vm, "stop sending", failure) from failure

    async def read_mark(self, host: str, vm: str) -> MachineMark | None:
        element = await self._hosts.run(
            host, vm, "look at", lambda session: session.metadata(vm, MARK_NAMESPACE, STORED)
        )
        return parse_mark(element)

    async def write_mark(self, host: str, vm: str, mark: MachineMark) -> None:
        def work(session: LibvirtSession) -> None:
            if not session.is_stored(vm):
                raise Refused(
                    f"VM {vm!r} is transient: host {host} forgets it when it ends; define it with `virsh define`"
                )
            which = STORED | (LIVE if session.is_active(vm) else 0)
            session.set_metadata(vm, MARK_NAMESPACE, mark_element(mark), which)
            self._copies.save(self._hosts.connection(host).name, vm, session.stored_xml(vm))

        await self._hosts.run(host, vm, "mark", work)

    async def can_lock_disks(self, host: str, vm: str) -> bool:
        return False

    async def fence(self, host: str) -> bool:
        connection = self._hosts.connection(host)
        return await run_fence_command(
            connection.host.fence, connection.name, timeout_s=connection.host.fence_timeout_s
        )

    async def capacity(self, host: str) -> FreeCapacity:
        return await self._hosts.run(host, "", "look at", lambda session: session.capacity())

    async def can_run_cpu(self, host: str, cpu: str) -> bool:
        return await self._hosts.run(host, "", "look at", lambda session: session.can_run_cpu(cpu))

    async def kept_vms(self) -> dict[str, VmNeeds]:
        return self._definitions.kept_vms()

    def changes(self) -> AsyncGenerator[DomainChange, None]:
        """Yield each change that a host reports about a VM or itself, from now on until it is closed."""
        return self._hosts.watch()

    async def close(self) -> None:
        await self._migrations.close()
        await self._hosts.close()
