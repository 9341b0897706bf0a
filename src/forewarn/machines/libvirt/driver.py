"""Implements `MachineDriver` on libvirt: each operation looks at the VM, then does one thing.

A VM is the domain of the same name. Its mark and the progress of a live migration are stored in the domain's metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from forewarn.core.unannounced import ObservedMachine
from forewarn.errors import ForewarnError, Refused
from forewarn.machines.driver import (
    FreeCapacity,
    HostUnreachable,
    MachineMark,
    MachineState,
    MigrationProgress,
    VmNeeds,
    run_fence_command,
)
from forewarn.machines.libvirt.connection import DomainChange, LibvirtConnection, LibvirtHost, operation_error
from forewarn.machines.libvirt.definition_copies import DefinitionCopies
from forewarn.machines.libvirt.definitions import (
    DomainDefinitions,
    copy_all_definitions,
    require_memory,
    require_state,
    state_of,
)
from forewarn.machines.libvirt.disks import delete_disks as delete_disks_of_vm
from forewarn.machines.libvirt.disks import (
    empty_ephemeral_disks,
    ephemeral_disks,
    owned_disks,
    renew_os_disk,
    restore_ephemeral_disks,
    volumes_of,
)
from forewarn.machines.libvirt.domain_state import (
    MARK_NAMESPACE,
    MOVE_NAMESPACE,
    MoveMark,
    mark_element,
    move_element,
    observed_machine,
    parse_mark,
    with_own_metadata,
)
from forewarn.machines.libvirt.hosts import LibvirtHosts
from forewarn.machines.libvirt.session import LIVE, OPERATION_INVALID, STORED, LibvirtFailure, LibvirtSession

log = logging.getLogger(__name__)


# Live migrations by libvirt, each in a thread, because libvirt's call returns when it is over.
#
# The source's definition says SENT when it has completed; the destination's running definition says RECEIVED from its
# first moment, and counts only when libvirt no longer reports an incoming migration.

_ABORT_INTERVAL_S = 0.2  # between attempts to abort a migration that libvirt has not begun yet


class LiveMigrations:
    """The live migrations that this process has begun, and why the latest one of each VM failed."""

    # Kept in memory only. `on_end` is called with the source host and the VM when a migration is over, however it
    # ended.

    def __init__(self, *, on_end: Callable[[str, str], None] = lambda host, vm: None) -> None:
        self._on_end = on_end
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}  # (host in lower case, VM) → its migration
        self._errors: dict[tuple[str, str], str] = {}

    def is_active(self, host: str, vm: str) -> bool:
        """Return whether this process is migrating the VM from the host now."""
        task = self._tasks.get(_key(host, vm))
        return task is not None and not task.done()

    async def begin(self, source: LibvirtConnection, target: LibvirtConnection, vm: str) -> None:
        """Begin to migrate the VM live, unless the source does already; returns before the migration is over.

        When it succeeds, the source's definition is marked SENT. Does not check that the target waits for the VM.
        """
        if (await source.call(lambda session: session.progress(vm))).is_active:
            return  # by its own daemon, since before this process started
        mark = parse_mark(await target.call(lambda session: session.metadata(vm, MARK_NAMESPACE, STORED)))
        running, stored = await source.call(lambda session: (session.migratable_xml(vm), session.stored_xml(vm)))
        target_session = await target.session()
        dest_xml = with_own_metadata(running, mark=mark, move=MoveMark.RECEIVED)
        stored_xml = with_own_metadata(stored, mark=mark, move=None)

        def migrate(session: LibvirtSession) -> None:
            session.migrate(
                vm,
                target_session,
                dest_xml=dest_xml,
                stored_xml=stored_xml,
                migrate_uri=target.host.migrate_uri.replace("{vm}", vm),
                peer_uri=target.host.peer_uri,
            )
            session.set_metadata(vm, MOVE_NAMESPACE, move_element(MoveMark.SENT), STORED)

        key = _key(source.name, vm)
        self._errors.pop(key, None)
        self._tasks[key] = asyncio.create_task(self._migrate(source, vm, migrate))
        self._tasks[key].add_done_callback(lambda _: self._on_end(source.name, vm))

    async def _migrate(self, source: LibvirtConnection, vm: str, migrate: Callable[[LibvirtSession], None]) -> None:
        try:
            await source.call(migrate, waits=True)
        except LibvirtFailure as failure:
            if failure.is_connection_lost:
                log.warning("host %s ended the connection while it sent VM %s: %s", source.name, vm, failure)
            else:
                self._errors[_key(source.name, vm)] = str(operation_error(source.name, vm, "send", failure))
        except ForewarnError as error:
            self._errors[_key(source.name, vm)] = str(error)

    def complete(self, host: str, vm: str, progress: MigrationProgress) -> MigrationProgress:
        """Return libvirt's progress with what only this process knows: that a migration began or failed."""
        return msgspec.structs.replace(
            progress,
            is_active=progress.is_active or self.is_active(host, vm),
            error=self._errors.get(_key(host, vm), ""),
        )

    async def cancel(self, source: LibvirtConnection, vm: str) -> None:
        """Abort the migration of the VM, and wait until neither the host nor this process is sending it."""
        task = self._tasks.get(_key(source.name, vm))
        try:
            async with asyncio.timeout(source.host.timeout_s):
                while True:
                    if (await source.call(lambda session: session.progress(vm))).is_active:
                        await source.call(lambda session: session.abort_job(vm))
                    elif task is None or task.done():
                        return
                    await asyncio.sleep(_ABORT_INTERVAL_S)
        except TimeoutError as error:
            raise HostUnreachable(f"host {source.name} has not stopped sending VM {vm!r}") from error

    async def close(self) -> None:
        """Stop waiting for migrations, without aborting them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(host: str, vm: str) -> tuple[str, str]:
    return host.casefold(), vm


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
