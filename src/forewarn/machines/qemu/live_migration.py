"""The beginning of a live migration over QMP: where the destination waits, and the order to send.

Questions to a QEMU whose guest runs take long, so those that do not depend on each other are asked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from forewarn.errors import Refused
from forewarn.machines.driver import IN_MEMORY, MachineState
from forewarn.machines.qemu.observation import is_migrating, read_state
from forewarn.machines.qemu.processes import QemuInstance
from forewarn.machines.qemu.qmp import Monitor


async def begin_to_receive(monitor: Monitor, instance: QemuInstance, *, address: str) -> None:
    """Make QEMU listen for a live migration on a free TCP port of `address`; "": on a Unix socket."""
    await monitor.enable_migration_options("late-block-activate", "events")
    uri = f"tcp:{_bracketed(address)}:0" if address else f"unix:{instance.migration_socket}"
    await monitor.execute("migrate-incoming", {"uri": uri})


async def is_listening(monitor: Monitor) -> bool:
    return "socket-address" in await monitor.execute("query-migrate")


async def listening_uri(monitor: Monitor, instance: QemuInstance) -> str:
    state, report = await asyncio.gather(read_state(monitor, instance), monitor.execute("query-migrate"))
    if state is not MachineState.RECEIVING:
        raise Refused(f"{instance.name} is {state}: it does not wait for a live migration")
    addresses = report.get("socket-address")
    if not addresses:
        raise Refused(f"{instance.name} does not listen for a live migration yet: prepare it first")
    return _migration_uri(addresses[0])


async def begin_to_send(
    monitor: Monitor, instance: QemuInstance, *, address: str, find_address: Callable[[], Awaitable[str]]
) -> None:
    # Does nothing if the VM is being sent, or was sent. After HostUnreachable the migration may have begun.

    async def look() -> tuple[MachineState, bool]:
        return await asyncio.gather(read_state(monitor, instance), is_migrating(monitor))

    async def find() -> str:
        return address or await find_address()

    # The source learns whether the destination has everything, and reports how far it is. A source that is sending
    # refuses the options, and has them already.
    looked, uri, enabled = await asyncio.gather(
        look(), find(), monitor.enable_migration_options("return-path", "events"), return_exceptions=True
    )
    if isinstance(looked, BaseException):
        raise looked
    state, is_sending = looked
    if state is MachineState.SENT or is_sending:
        return
    if state not in IN_MEMORY:
        raise Refused(f"{instance.name} is {state}: it cannot be migrated")
    for answer in (uri, enabled):
        if isinstance(answer, BaseException):
            raise answer
    await monitor.execute("migrate", {"uri": uri})


def _migration_uri(address: Mapping[str, str]) -> str:
    if address["type"] == "unix":
        return f"unix:{address['path']}"
    return f"tcp:{_bracketed(address['host'])}:{address['port']}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
