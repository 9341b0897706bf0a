"""One connection to the monitor (QMP) of a QEMU process, with timeouts and readable errors.

QEMU serves one client at a time, so connections are short: one for each operation of the driver.
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
from forewarn.hypervisor.machines.driver import HostUnreachable


class MonitorNotListening(HostUnreachable):
    """Nothing listens on the monitor's socket: QEMU does not run, or has not opened it yet."""


class MonitorCommandFailed(Refused):
    """QEMU answered a command with an error."""


@cache
def require_qmp() -> ModuleType:
    """Return the library `qemu.qmp`. Raises Rejected with what to install if it is missing."""
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
    """A connected monitor; `connect_monitor` makes it. `name` says in errors which VM it is."""

    def __init__(self, client: Any, name: str, timeout_s: float) -> None:
        self._client = client
        self._name = name
        self._timeout_s = timeout_s

    async def execute(self, command: str, arguments: Mapping[str, object] | None = None) -> Any:
        """Return QEMU's answer.

        Raises MonitorCommandFailed if it is an error, HostUnreachable if there is none in time. `arguments` None: none.
        """
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
            raise HostUnreachable(f"QEMU of {self._name} closed the connection during {command!r}") from error

    async def quit(self) -> None:
        """Tell QEMU to end; returns once it has accepted or refused the command, or is gone. Raises nothing."""
        with suppress(HostUnreachable, MonitorCommandFailed):
            await self.execute("quit")


@asynccontextmanager
async def connect_monitor(socket: Path, name: str, *, timeout_s: float) -> AsyncIterator[Monitor]:
    """Connect, and disconnect when the block is left.

    `timeout_s` is for the connection, and for each command, in real seconds. Raises MonitorNotListening if the socket
    is missing or refuses connections, Refused without permission for it, HostUnreachable if QEMU does not answer,
    Rejected if the library is missing.
    """
    qmp = require_qmp()
    client = qmp.QMPClient(name)
    try:
        async with asyncio.timeout(timeout_s):
            await client.connect(str(socket))
    except TimeoutError as error:
        raise HostUnreachable(
            f"QEMU of {name} did not answer on {str(socket)!r} within {timeout_s:g} s: "
            "it hangs, or another program is connected to this socket"
        ) from error
    except qmp.ConnectError as error:
        raise _connection_error(error.exc, socket, name) from error
    try:
        yield Monitor(client, name, timeout_s)
    finally:
        await _disconnect(client, timeout_s)


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


async def _disconnect(client: Any, timeout_s: float) -> None:
    """Disconnect; what the library raises here is the reason why the connection has ended, and of no use."""
    with suppress(Exception):
        async with asyncio.timeout(timeout_s):
            await client.disconnect()
