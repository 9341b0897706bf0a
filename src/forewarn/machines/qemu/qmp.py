"""One connection to the monitor (QMP) of a QEMU process, with timeouts and readable errors.

QEMU serves one client at a time, so connections are short: `QemuProcesses` keeps them for a moment only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from forewarn.errors import Refused, Rejected
from forewarn.machines.driver import HostUnreachable

# Events after which the state of a VM, or of its migration, is not what it was.
_CHANGES = ("STOP", "RESUME", "RESET", "SHUTDOWN", "SUSPEND", "WAKEUP", "GUEST_PANICKED", "MIGRATION")


class MonitorDisconnected(HostUnreachable):
    """QEMU closed the connection before it answered: usually it has ended. `Monitor.execute` raises it."""


class MonitorNotListening(HostUnreachable):
    """Nothing listens on the socket of QEMU's monitor (QMP): QEMU is not running, ending, or starting."""


class MonitorCommandFailed(Refused):
    """QEMU answered a command with an error, which is in the message. `Monitor.execute` raises it."""


@cache
def require_qmp() -> ModuleType:
    """Return the library `qemu.qmp`, with its log messages turned off."""
    try:
        import qemu.qmp
    except ImportError as error:
        raise Rejected(
            "hypervisor 'qemu' needs the package qemu.qmp: install it with `pip install 'forewarn[qemu]'`"
        ) from error
    # It logs as errors what it also raises, and the end of every QEMU that was told to quit.
    logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL + 1)
    return qemu.qmp


class Monitor:
    """An open connection to the monitor (QMP) of one QEMU process, which collects events about changes of the VM."""

    def __init__(self, client: Any, name: str, timeout_s: float) -> None:
        self._client = client
        self._name = name
        self._timeout_s = timeout_s
        self._changes = require_qmp().EventListener(_CHANGES)
        client.register_listener(self._changes)

    @property
    def is_connected(self) -> bool:
        """Whether QEMU has not closed the connection, as far as is known."""
        return bool(self._client.runstate is require_qmp().Runstate.RUNNING)

    def forget_changes(self) -> None:
        """Forget the changes of the VM that QEMU has reported so far: the caller is about to look at it."""
        self._changes.clear()

    async def wait_for_change(self, *, within_s: float) -> bool:
        """Wait until QEMU reports a change of the VM since `forget_changes`, and return whether it did."""
        try:
            async with asyncio.timeout(within_s):
                await self._changes.get()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Disconnect; takes no longer than a command may. Raises nothing, and may be called twice."""
        with suppress(Exception):  # the library raises why the connection has ended, which is of no use here
            async with asyncio.timeout(self._timeout_s):
                await self._client.disconnect()

    async def execute(self, command: str, arguments: Mapping[str, object] | None = None) -> Any:
        """Execute a QMP command with these arguments (None: none), and return QEMU's answer."""
        qmp = require_qmp()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._client.execute(command, dict(arguments) if arguments else None)
        except TimeoutError as error:
            raise HostUnreachable(
                f"QEMU of {self._name} did not answer {command!r} within {self._timeout_s:g} s"
            ) from error
        except qmp.ExecuteError as error:
            raise MonitorCommandFailed(f"QEMU of {self._name} refused {command!r}: {str(error).rstrip('.')}") from error
        except (qmp.QMPError, OSError, EOFError) as error:
            raise MonitorDisconnected(f"QEMU of {self._name} closed the connection during {command!r}") from error

    async def enable_migration_options(self, *capabilities: str) -> None:
        """Enable these capabilities of live migrations in QEMU, in QEMU's names."""
        enabled = [{"capability": name, "state": True} for name in capabilities]
        await self.execute("migrate-set-capabilities", {"capabilities": enabled})

    async def quit(self) -> None:
        """Tell QEMU to end; returns once it has accepted or refused the command, or is gone. Raises nothing."""
        with suppress(HostUnreachable, MonitorCommandFailed):
            await self.execute("quit")


async def open_monitor(socket: Path, name: str, *, timeout_s: float, connect_timeout_s: float | None = None) -> Monitor:
    """Connect to the monitor on this socket, and return it; the caller closes it. `name` is for errors."""
    qmp = require_qmp()
    client = qmp.QMPClient(name)
    limit_s = timeout_s if connect_timeout_s is None else connect_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            await client.connect(str(socket))
    except TimeoutError as error:
        raise HostUnreachable(
            f"QEMU of {name} did not answer on {str(socket)!r} within {limit_s:g} s: "
            "it hangs, or another program is connected to this socket"
        ) from error
    except qmp.ConnectError as error:
        raise _connection_error(error.exc, socket, name) from error
    return Monitor(client, name, timeout_s)


@asynccontextmanager
async def connect_monitor(socket: Path, name: str, *, timeout_s: float) -> AsyncIterator[Monitor]:
    """Return an async context manager that connects to QEMU's monitor, and disconnects after the block."""
    monitor = await open_monitor(socket, name, timeout_s=timeout_s)
    try:
        yield monitor
    finally:
        await monitor.close()


def _connection_error(cause: Exception, socket: Path, name: str) -> HostUnreachable | Refused:
    match cause:
        case FileNotFoundError():
            return MonitorNotListening(f"QEMU of {name} does not run: socket {str(socket)!r} does not exist")
        case ConnectionRefusedError():
            return MonitorNotListening(f"QEMU of {name} does not run: nothing listens on socket {str(socket)!r}")
        case PermissionError():
            return Refused(
                f"no permission to connect to socket {str(socket)!r} of {name}: "
                "run the service as the user who owns the socket"
            )
        case EOFError() | ConnectionError():
            return MonitorNotListening(f"QEMU of {name} closed the connection on socket {str(socket)!r}: it has ended")
        case OSError():
            return HostUnreachable(f"socket {str(socket)!r} of {name} cannot be reached: {cause.strerror or cause}")
        case _:
            return HostUnreachable(f"socket {str(socket)!r} of {name} is not a QMP monitor of QEMU ({cause})")
