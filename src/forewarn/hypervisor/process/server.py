"""The door for keepers: `DATA/forewarn.vms`, a unix socket that only its owner can open.

A keeper says which VM it holds and is welcomed or refused; the listening socket it brings from inside the VM is given
to the metadata room, for as long as the line lasts.
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

from forewarn.assembly.directory import VMS
from forewarn.assembly.mouth import Mouth
from forewarn.console.directory import Directory
from forewarn.console.server import bind_unix
from forewarn.core.fleet import Power, Vm
from forewarn.core.history import Entry, What
from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.hypervisor.keepers import Keepers
from forewarn.hypervisor.line import Exit
from forewarn.hypervisor.link import Heard, Link
from forewarn.hypervisor.roster import Roster
from forewarn.metadata import Listener
from forewarn.store.seam import Store

log = logging.getLogger(__name__)
_HELLO_S = 60.0  # a keeper may be one of hundreds that start at once
_BACKLOG = 512
_LONGEST_PROGRAM = 200  # in the history

Tell = Callable[[What, Vm, str], Awaitable[None]]


class Door:
    """`tell` writes into the history."""

    def __init__(self, *, keepers: Keepers, store: Store, mouth: Mouth, tell: Tell) -> None:
        self._keepers = keepers
        self._store = store
        self._directory: Directory | None = None
        self._mouth = mouth
        self._tell = tell
        self._links: dict[Link, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[None]:
        """Let keepers in until the block is left; they go on by themselves then, and come back."""
        sock = bind_unix(path)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        accepting = asyncio.create_task(self._accept(sock))
        try:
            yield
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            sock.close()
            path.unlink(missing_ok=True)
            for link in tuple(self._links):
                link.close()
            await asyncio.gather(*self._links.values(), return_exceptions=True)

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(sock)
            except OSError as error:
                log.warning("a keeper cannot be let in now: %s", error)
                await asyncio.sleep(1.0)
                continue
            link = Link(connection)
            self._links[link] = asyncio.create_task(self._attend(link))

    async def _attend(self, link: Link) -> None:
        try:
            vm = await self._welcome(link)
            if vm is not None:
                await self._keep(vm, link)
        except ForewarnError as error:
            link.say({"refused": str(error)})
        except Exception:
            log.exception("the line to a keeper failed")
        finally:
            link.close()
            link.discard()
            self._links.pop(link, None)

    async def _welcome(self, link: Link) -> Vm | None:
        heard: Heard | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_HELLO_S):
                heard = await link.hear()
        if heard is None:
            return None
        if heard.hello is None:
            raise Rejected("a keeper says hello first: say which VM you keep")
        vm = self._find(heard.hello.vm)
        self._keepers.must_be_free(vm.key, heard.hello)
        if vm.power is not Power.RUNNING and not self._keepers.is_known(vm.key, heard.hello):
            raise Refused(f"VM {vm.name!r} is {vm.power}: turn it on first, with `forewarn power {vm.name} start`")
        link.meet(heard.hello)
        place = self._keepers.directory_of(vm.key)
        (place / "ephemeral").mkdir(parents=True, exist_ok=True, mode=0o700)
        link.say({"welcome": {"vm": _introduced(vm, place)}})
        if self._keepers.arrive(vm.key, link):
            await self._tell(What.PROGRAM, vm, _greeting(vm, link))
        return vm

    def _find(self, name: str) -> Vm:
        """A service that nobody keeps VMs for need not know their names."""
        if self._directory is None:
            self._directory = Directory(self._store)
        return self._directory.find(name)

    async def _keep(self, vm: Vm, link: Link) -> None:
        listeners: list[Listener] = []
        try:
            while (heard := await link.hear()) is not None:
                if heard.listener is not None:
                    listeners.append(await self._listen(vm, heard.fds))
                    link.say({"listening": True})
                if heard.exited is not None:
                    link.state = "ended"
                    self._keepers.end(vm.key)
                    await self._tell(What.PROGRAM, vm, _farewell(vm, heard.exited))
        finally:
            if self._keepers.leave(vm.key, link) and link.state == "down":
                self._keepers.end(vm.key)
            for listener in listeners:
                await self._mouth.unlisten(listener)

    async def _listen(self, vm: Vm, fds: tuple[int, ...]) -> Listener:
        first, *more = fds or (-1,)
        for fd in more:
            os.close(fd)
        if first < 0:
            raise Rejected("no socket came with the line that offers one: send it along (SCM_RIGHTS)")
        sock = socket.socket(fileno=first)
        try:
            _must_listen(sock)
            return await self._mouth.listen_within(vm.key, sock)
        except BaseException:
            sock.close()
            raise


def _introduced(vm: Vm, place: Path) -> dict[str, str]:
    return {
        "name": vm.name,
        "key": vm.key,
        "computer_name": vm.computer_name or vm.name,
        "host": vm.host,
        "ephemeral": str(place / "ephemeral"),
        "directory": str(place),
    }


def _must_listen(sock: socket.socket) -> None:
    stream = sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6)
    if not stream or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise Rejected("what was handed over is no listening TCP socket: listen on it first")
    sock.setblocking(False)


def _greeting(vm: Vm, link: Link) -> str:
    program = shlex.join(link.program or ()) or "nothing yet"
    short = program if len(program) <= _LONGEST_PROGRAM else f"{program[:_LONGEST_PROGRAM]}…"
    return f"{vm.name} runs {short} (keeper: process {link.pid})"


def _farewell(vm: Vm, exited: Exit) -> str:
    how = f"was ended by signal {exited.signal}" if exited.signal is not None else f"ended with code {exited.code}"
    words = exited.output.strip()
    return f"the program of {vm.name} {how}" + (f"; it said: {words}" if words else "")


def entry_about(vm: Vm, what: What, text: str, at: float) -> Entry:
    return Entry(at=at, what=what, who="forewarn", text=text, scope_id=vm.scope_id, vm=vm.name)


def keeping_on(data: Path) -> list[int]:
    """The processes that keep VMs of this data directory, whether or not its service runs."""
    return Roster(data / VMS).alive
