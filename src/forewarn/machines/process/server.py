"""Accepts supervisors on `DATA/forewarn.vms`, a unix socket for the service's user and root.

A supervisor says which VM it holds and is accepted or refused. The metadata server serves the listening socket that
it sends from inside the VM, for as long as the connection lasts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from forewarn.base.unix_socket import PeerCredentials, peer_refusal
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.history import EntryKind
from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.machines.process.connection import SupervisorConnection, SupervisorNotification
from forewarn.machines.process.hypervisor import SupervisorRegistry
from forewarn.machines.process.messages import ProgramExitMessage

log = logging.getLogger(__name__)
_HELLO_TIMEOUT_S = 60.0  # hundreds of supervisors may start at once
_BACKLOG = 512
_MAX_PROGRAM_CHARACTERS = 200  # in the history

WriteHistory = Callable[[EntryKind, Vm, str], Awaitable[None]]  # kind, VM, text of the entry
FindVm = Callable[[str], Vm]  # by name or key; raises NotFound
StopListening = Callable[[], Awaitable[None]]  # stops accepting on one listener
ListenInsideVm = Callable[[str, socket.socket], Awaitable[StopListening]]  # VM key, listening socket


class SupervisorServer:
    """Accepts supervisors, and serves the listening sockets that they send from inside their VMs."""

    # It refuses a supervisor whose VM is unknown or has another live supervisor, and a new one whose VM is not running.
    # Starts of supervisors, and ends of programs that no act caused, are written to the history.

    def __init__(
        self,
        *,
        supervisors: SupervisorRegistry,
        find_vm: FindVm,
        listen: ListenInsideVm,
        write_history: WriteHistory,
    ) -> None:
        self._supervisors = supervisors
        self._find_vm = find_vm
        self._listen = listen
        self._write_history = write_history
        self._connection_tasks: dict[SupervisorConnection, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def serve(self, sock: socket.socket, path: Path) -> AsyncIterator[None]:
        """Listen on a bound unix socket until the block is left; then close it and delete its file `path`."""
        # Accepts only processes of the service's user and of root. Supervisors keep running without the service, and
        # connect again when it is back.
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        accepting = asyncio.create_task(self._accept_forever(sock))
        try:
            yield
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            sock.close()
            path.unlink(missing_ok=True)
            for connection in tuple(self._connection_tasks):
                connection.close()
            await asyncio.gather(*self._connection_tasks.values(), return_exceptions=True)

    async def _accept_forever(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(sock)
            except OSError as error:
                log.warning("a supervisor cannot be accepted now: %s", error)
                await asyncio.sleep(1.0)
                continue
            if refusal := _peer_refusal(accepted):
                log.warning("a supervisor was refused: %s", refusal)
                accepted.close()
                continue
            connection = SupervisorConnection(accepted)
            self._connection_tasks[connection] = asyncio.create_task(self._handle_connection(connection))

    async def _handle_connection(self, connection: SupervisorConnection) -> None:
        try:
            vm = await self._handshake(connection)
            if vm is not None:
                await self._receive_until_closed(vm, connection)
        except ForewarnError as error:
            connection.send({"refused": str(error)})
        except Exception:
            log.exception("the connection to a supervisor failed")
        finally:
            connection.close()
            connection.discard_received()
            self._connection_tasks.pop(connection, None)

    async def _handshake(self, connection: SupervisorConnection) -> Vm | None:
        message: SupervisorNotification | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                message = await connection.receive()
        if message is None:
            return None
        if message.hello is None:
            raise Rejected("the first message must be a hello: say which VM you hold")
        vm = self._find_vm(message.hello.vm)
        self._supervisors.require_no_other_supervisor(vm.key, message.hello)
        if vm.power is not PowerState.RUNNING and not self._supervisors.is_recorded(vm.key, message.hello):
            raise Refused(f"VM {vm.name!r} is {vm.power}: start it first, with `forewarn power {vm.name} start`")
        connection.identify(message.hello)
        directory = self._supervisors.vm_directory(vm.key)
        (directory / "ephemeral").mkdir(parents=True, exist_ok=True, mode=0o700)
        connection.send({"welcome": {"vm": _welcome_vm(vm, directory)}})
        if self._supervisors.register(vm.key, connection):
            await self._write_history(EntryKind.PROGRAM, vm, _started_text(vm, connection))
        return vm

    async def _receive_until_closed(self, vm: Vm, connection: SupervisorConnection) -> None:
        stops: list[StopListening] = []
        try:
            while (message := await connection.receive()) is not None:
                if message.listener is not None:
                    stops.append(await self._start_listener(vm, message.fds))
                    connection.send({"listening": True})
                if message.exited is not None:
                    connection.state = "ended"
                    self._supervisors.mark_ended(vm.key)
                    await self._write_history(EntryKind.PROGRAM, vm, _ended_text(vm, message.exited))
        finally:
            if self._supervisors.unregister(vm.key, connection) and connection.state == "down":
                self._supervisors.mark_ended(vm.key)
            for stop in stops:
                await stop()

    async def _start_listener(self, vm: Vm, fds: tuple[int, ...]) -> StopListening:
        first, *more = fds or (-1,)
        for fd in more:
            os.close(fd)
        if first < 0:
            raise Rejected("the listener message came without a socket: send it along (SCM_RIGHTS)")
        sock = socket.socket(fileno=first)
        try:
            _require_listening_socket(sock)
            return await self._listen(vm.key, sock)
        except BaseException:
            sock.close()
            raise


def _peer_refusal(accepted: socket.socket) -> str:
    try:
        return peer_refusal(PeerCredentials.of(accepted), os.geteuid())
    except OSError as error:
        return f"its user is not known ({error.strerror})"


def _welcome_vm(vm: Vm, directory: Path) -> dict[str, str]:
    return {
        "name": vm.name,
        "key": vm.key,
        "computer_name": vm.computer_name or vm.name,
        "host": vm.host,
        "ephemeral": str(directory / "ephemeral"),
        "directory": str(directory),
    }


def _require_listening_socket(sock: socket.socket) -> None:
    is_tcp = sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6)
    if not is_tcp or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise Rejected("the socket is not a listening TCP socket: listen on it first")
    sock.setblocking(False)


def _started_text(vm: Vm, connection: SupervisorConnection) -> str:
    program = shlex.join(connection.program or ()) or "no program yet"
    shortened = program if len(program) <= _MAX_PROGRAM_CHARACTERS else f"{program[:_MAX_PROGRAM_CHARACTERS]}…"
    return f"{vm.name} runs {shortened} (supervisor: process {connection.pid})"


def _ended_text(vm: Vm, exited: ProgramExitMessage) -> str:
    how = f"was ended by signal {exited.signal}" if exited.signal is not None else f"ended with code {exited.code}"
    output = exited.output.strip()
    return f"the program of {vm.name} {how}" + (f"; its output: {output}" if output else "")
