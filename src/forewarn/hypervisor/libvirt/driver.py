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
from forewarn.hypervisor.libvirt.connection import DomainChange, LibvirtHost, operation_error
from forewarn.hypervisor.libvirt.definition_copies import DefinitionCopies
from forewarn.hypervisor.libvirt.definitions import DomainDefinitions, copy_all_definitions
from forewarn.hypervisor.libvirt.disks import delete_disks as delete_disks_of_vm
from forewarn.hypervisor.libvirt.disks import (
    empty_ephemeral_disks,
    ephemeral_disks,
    owned_disks,
    renew_os_disk,
    restore_ephemeral_disks,
    volumes_of,
)
from forewarn.hypervisor.libvirt.domain_checks import require_memory, require_state, state_of
from forewarn.hypervisor.libvirt.domain_state import observed_machine
from forewarn.hypervisor.libvirt.domain_xml import (
    MARK_NAMESPACE,
    MOVE_NAMESPACE,
    MoveMark,
    mark_element,
    move_element,
    parse_mark,
)
from forewarn.hypervisor.libvirt.failure import OPERATION_INVALID, LibvirtFailure
from forewarn.hypervisor.libvirt.hosts import LibvirtHosts
from forewarn.hypervisor.libvirt.live_migration import LiveMigrations
from forewarn.hypervisor.libvirt.session import LIVE, STORED, LibvirtSession
from forewarn.hypervisor.machines.driver import FreeCapacity, MachineMark, MachineState, MigrationProgress, VmNeeds
from forewarn.hypervisor.machines.fence_command import run_fence_command


class LibvirtDriver:
    """Performs operations on the domains of libvirt hosts; implements `MachineDriver`.

    `hosts` has the settings, by the fleet's names of the hosts, ignoring letter case; a VM is the domain with exactly
    its name. `definitions` is a directory for copies of the VMs' definitions; None: no copies. No connection is opened
    before it is needed. Methods raise HostUnreachable if the host does not answer, or has not finished an earlier call
    that uses the VM's disks; Refused with a sentence if libvirt refuses or the settings lack the host, Rejected without
    libvirt's Python module, and ActNotTried if a copy of a definition cannot be read or written.
    """

    can_reimage = True

    def __init__(self, hosts: Mapping[str, LibvirtHost], definitions: Path | None) -> None:
        self._copies = DefinitionCopies(definitions)
        self._hosts = LibvirtHosts(hosts, on_open=partial(copy_all_definitions, self._copies))
        self._definitions = DomainDefinitions(self._hosts, self._copies)
        self._migrations = LiveMigrations(on_end=self._hosts.changes.note)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts, as the settings spell them, in their order."""
        return self._hosts.names

    async def observe(self, host: str) -> dict[str, ObservedMachine]:
        """Return all domains of the host by name, and their states, from one call to libvirt.

        Raises HostUnreachable if the host does not answer, or Refused.
        """
        listing = await self._hosts.run(host, "", "look at", lambda session: session.listing())
        return {domain.name: observed_machine(domain) for domain in listing}

    async def changed_hosts(self) -> AsyncGenerator[str, None]:
        """Yield the name of a host for each change that it reports, and when it is lost or found.

        It goes on until it is closed. A host that does not answer raises nothing.
        """
        async with contextlib.aclosing(self.changes()) as changes:
            async for change in changes:
                yield change.host

    async def state(self, host: str, vm: str) -> MachineState:
        """Return what the host reports about the VM now; ABSENT if it has none of this name.

        A later `wait_for_change` waits for changes after this call. Raises HostUnreachable or Refused.
        """
        self._hosts.changes.forget(host, vm)
        return await self._hosts.run(host, vm, "look at", lambda session: state_of(session, vm))

    async def stop_reason(self, host: str, vm: str) -> str:
        """Return for people why the VM is HALTED, such as `no space is left for disk vda`; "" if it is not.

        Raises HostUnreachable, or Refused also if the host does not know the VM.
        """
        return await self._hosts.run(host, vm, "look at", lambda session: session.stop_reason(vm))

    async def wait_for_change(self, host: str, vm: str, *, within_s: float) -> bool:
        """Wait for a change of the domain since its state was read, and return whether one came.

        A change is a lifecycle event, or the end of its migration. False after `within_s` seconds of real time. Asks no
        host, and raises nothing.
        """
        return await self._hosts.changes.wait_for(host, vm, within_s=within_s)

    async def pause(self, host: str, vm: str) -> None:
        """Stop the VM's CPUs: RUNNING becomes PAUSED. Does nothing if it is PAUSED.

        Raises HostUnreachable, or Refused in any other state.
        """

        def work(session: LibvirtSession) -> None:
            if require_state(session, host, vm, "pause", MachineState.RUNNING, done=MachineState.PAUSED):
                session.set_metadata(vm, MOVE_NAMESPACE, None, LIVE)
                session.suspend(vm)

        await self._hosts.run(host, vm, "pause", work)

    async def resume(self, host: str, vm: str) -> None:
        """Make a PAUSED, RECEIVED or HALTED VM RUNNING. Does nothing if it is RUNNING.

        Raises HostUnreachable, or Refused in any other state, such as SENT.
        """

        def work(session: LibvirtSession) -> None:
            paused = (MachineState.PAUSED, MachineState.RECEIVED, MachineState.HALTED)
            if require_state(session, host, vm, "resume", *paused, done=MachineState.RUNNING):
                session.resume(vm)
                session.set_metadata(vm, MOVE_NAMESPACE, None, LIVE)

        await self._hosts.run(host, vm, "resume", work)

    async def reset(self, host: str, vm: str) -> None:
        """Reset a PAUSED or HALTED VM: its next resume boots it. Does not resume it.

        Raises HostUnreachable, or Refused in any other state.
        """

        def work(session: LibvirtSession) -> None:
            if require_state(session, host, vm, "reset", MachineState.PAUSED, MachineState.HALTED):
                session.reset(vm)

        await self._hosts.run(host, vm, "reset", work)

    async def press_power_button(self, host: str, vm: str) -> None:
        """Ask a RUNNING guest through ACPI to shut down; does not wait for it. Does nothing if it is OFF.

        Raises HostUnreachable, or Refused in any other state.
        """

        def work(session: LibvirtSession) -> None:
            if require_state(session, host, vm, "shut down", MachineState.RUNNING, done=MachineState.OFF):
                session.press_power_button(vm)

        await self._hosts.run(host, vm, "shut down", work)

    async def power_on(self, host: str, vm: str, *, fresh_ephemeral_disk: bool = False) -> None:
        """Boot a VM that is OFF: OFF becomes RUNNING.

        With `fresh_ephemeral_disk`, its ephemeral disks are new and empty; otherwise only missing ones are made, if a
        copy of their XML is kept. Does nothing if the VM is RUNNING or HALTED. Raises Refused in any other state, if a
        disk cannot be made, or if the VM does not start (its disks may already be empty then); HostUnreachable if the
        host does not answer.
        """

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
        """End the VM at once, without asking the guest: any state becomes OFF, and its disks stay.

        A transient domain becomes ABSENT. A migration to or from here is given up with it. Does nothing if it is OFF.
        Raises HostUnreachable, or Refused if the host does not know the VM.
        """

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
        """Make the host forget a VM that is OFF: it becomes ABSENT. Does nothing if it is ABSENT.

        With `delete_disks`, deletes its disks first, except CD-ROMs and the like, and read-only and shareable disks;
        raises Refused if one of the disks is in no active storage pool of the host. Without it, a copy of the
        definition stays for the VM's next start. A `host` of "" means that the VM is on no host: with `delete_disks`,
        any host that has its disks deletes them; without, nothing is done. Raises HostUnreachable, or Refused in any
        other state. After a failure some disks may be deleted: call it again.
        """
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
        """Replace the OS disk of a VM that is OFF with a new copy of its backing file; it stays OFF.

        Raises HostUnreachable, or Refused in any other state, and if the disk has no backing file or active storage
        pool. After a failure the VM may lack the disk: call it again.
        """

        def work(session: LibvirtSession) -> None:
            if require_state(session, host, vm, "reimage", MachineState.OFF):
                renew_os_disk(session, self._copies, self._hosts.connection(host).name, vm)

        await self._hosts.run(host, vm, "reimage", work, is_exclusive=True)

    async def copy_definition(
        self, host: str, vm: str, to_host: str, *, fresh_ephemeral_disk: bool = False, then_receives: bool = False
    ) -> None:
        """Define the VM on `to_host`, OFF there, as on `host`, or as `host` had it when it last answered.

        A `host` of "" means that the VM is on no host: it is defined as on its last host. Raises Refused if `to_host`
        has another VM of this name, or runs this one, or has too little memory free, or, with `fresh_ephemeral_disk`,
        cannot create its ephemeral disks. A VM that is RECEIVING or RECEIVED there stays so. `then_receives` makes no
        difference here. Raises HostUnreachable if `to_host` does not answer, or `host` does not and there is no copy of
        the definition.
        """
        await self._definitions.copy(host, vm, to_host, fresh_ephemeral_disk=fresh_ephemeral_disk)

    async def read_definition(self, host: str, vm: str) -> bytes:
        """Return the XML of the domain and of its ephemeral disks' volumes, as JSON (`MovedDomain`).

        The XML comes from the copies if the host does not answer, refuses, or has lost the domain; without a copy,
        raises what the host raised, HostUnreachable or Refused.
        """
        return await self._definitions.read(host, vm)

    async def define(
        self, host: str, vm: str, definition: bytes, *, from_host: str, fresh_ephemeral_disk: bool = False
    ) -> None:
        """Define the VM on `host`, OFF there, as `read_definition` described it on `from_host`.

        `definition` is what that returned, and is kept as this driver's copy for `from_host`; with b"", the present
        copy is used. Raises Refused if there is neither a definition nor a copy, or if `host` has another VM of this
        name, runs this one, has too little memory free, or, with `fresh_ephemeral_disk`, cannot create its ephemeral
        disks. Raises HostUnreachable.
        """
        await self._definitions.define(
            host, vm, definition, from_host=from_host, fresh_ephemeral_disk=fresh_ephemeral_disk
        )

    async def prepare_to_receive(self, to_host: str, vm: str) -> None:
        """Check that the destination has enough memory, and mark the VM there: OFF becomes RECEIVING.

        libvirt itself starts the VM's process there when the migration begins. Does nothing if it is RECEIVING. Raises
        HostUnreachable, or Refused in any other state, such as ABSENT (copy the definition first), and if the host has
        too little memory free.
        """

        def work(session: LibvirtSession) -> None:
            if not require_state(session, to_host, vm, "receive", MachineState.OFF, done=MachineState.RECEIVING):
                return
            require_memory(session, to_host, vm, session.stored_xml(vm))
            session.set_metadata(vm, MOVE_NAMESPACE, move_element(MoveMark.RECEIVING), STORED)

        await self._hosts.run(to_host, vm, "receive", work)

    async def send(self, host: str, vm: str, to_host: str) -> None:
        """Begin to migrate the VM live to a host where it is RECEIVING, and return at once.

        Does nothing if the VM is being sent already, or was SENT. `migration` shows the progress and, in `error`, why
        it failed, for example because the VM does not run. Raises HostUnreachable, or Refused if the VM is not
        RECEIVING on `to_host`. Both hosts must be in the settings.
        """
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
        """Return "": the source reaches the destination's libvirt by its own settings. Asks no host."""
        return ""

    async def send_to(self, host: str, vm: str, to_host: str, address: str) -> None:
        """Begin to migrate the VM live to `to_host`, and return at once; `address` is not used.

        The destination must also be a host of this driver: raises Refused if the settings lack it, or the VM is not
        RECEIVING there. Does nothing if the VM is being sent already, or was SENT. Raises HostUnreachable.
        """
        await self.send(host, vm, to_host)

    async def migration(self, host: str, vm: str) -> MigrationProgress:
        """Return how the live migration from this host is going; inactive, with zeros, if none has begun.

        `error` is known only for migrations that this process has begun. Raises HostUnreachable or Refused.
        """
        progress = await self._hosts.run(host, vm, "look at", lambda session: session.progress(vm))
        return self._migrations.complete(host, vm, progress)

    async def cancel_send(self, host: str, vm: str) -> None:
        """Abort a live migration from this host and wait for its end; the VM continues here.

        Does nothing if none is active. It may complete first: then the VM is SENT. Raises HostUnreachable if the host
        does not answer or does not stop in time, or Refused.
        """
        try:
            await self._migrations.cancel(self._hosts.connection(host), vm)
        except LibvirtFailure as failure:
            raise operation_error(host, vm, "stop sending", failure) from failure

    async def read_mark(self, host: str, vm: str) -> MachineMark | None:
        """Return the mark that is stored with the VM on this host: the act that was last begun on it.

        None if it has none, or is ABSENT. Raises HostUnreachable or Refused.
        """
        element = await self._hosts.run(
            host, vm, "look at", lambda session: session.metadata(vm, MARK_NAMESPACE, STORED)
        )
        return parse_mark(element)

    async def write_mark(self, host: str, vm: str, mark: MachineMark) -> None:
        """Store the mark (an act and its step) durably with the VM on this host, instead of an earlier one.

        The mark is part of the VM's definition, of which a copy is kept too. Raises HostUnreachable, or Refused if the
        host does not know the VM, or would forget it when it ends (a transient domain).
        """

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
        """Return False: libvirt cannot tell who holds the locks of a disk. Asks no host."""
        return False

    async def fence(self, host: str) -> bool:
        """Run the operator's fence command for the host; return whether it ended with code 0 in time.

        The command gets the host's name as FOREWARN_HOST. Also returns False if there is no such command. Failures are
        logged. Raises Refused if the settings lack the host.
        """
        connection = self._hosts.connection(host)
        return await run_fence_command(
            connection.host.fence, connection.name, timeout_s=connection.host.fence_timeout_s
        )

    async def capacity(self, host: str) -> FreeCapacity:
        """Return how much memory the host has free, and what its VMs need. Raises HostUnreachable or Refused."""
        return await self._hosts.run(host, "", "look at", lambda session: session.capacity())

    async def can_run_cpu(self, host: str, cpu: str) -> bool:
        """Return whether a VM with this CPU can be migrated live to the host; True if libvirt cannot tell.

        `cpu` is a text from `VmNeeds.cpu` of this or another libvirt driver. Raises HostUnreachable or Refused.
        """
        return await self._hosts.run(host, "", "look at", lambda session: session.can_run_cpu(cpu))

    async def kept_vms(self) -> dict[str, VmNeeds]:
        """Return the needs of VMs that were removed with their disks kept, by name; only memory is known.

        Asks no host.
        """
        return self._definitions.kept_vms()

    def changes(self) -> AsyncGenerator[DomainChange, None]:
        """Yield each change that a host reports about a VM or itself, from now on until it is closed.

        Includes what this driver does itself. An unreachable host raises nothing, and is tried again every five
        seconds.
        """
        return self._hosts.watch()

    async def close(self) -> None:
        """Release connections; may be called twice. VMs are left as they are.

        The hosts abort a migration that this process controls (without `peer_uri`) when the process ends.
        """
        await self._migrations.close()
        await self._hosts.close()
