"""Live migrations by libvirt, each in a thread, because libvirt's call returns when it is over.

The source's definition says SENT when it has completed; the destination's running definition says RECEIVED from its
first moment, and counts only when libvirt no longer reports an incoming migration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from forewarn.errors import ForewarnError
from forewarn.machines.driver import HostUnreachable, MigrationProgress
from forewarn.machines.libvirt.connection import LibvirtConnection, operation_error
from forewarn.machines.libvirt.domain_xml import (
    MARK_NAMESPACE,
    MOVE_NAMESPACE,
    MoveMark,
    move_element,
    parse_mark,
    with_own_metadata,
)
from forewarn.machines.libvirt.failure import LibvirtFailure
from forewarn.machines.libvirt.session import STORED, LibvirtSession

log = logging.getLogger(__name__)
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
