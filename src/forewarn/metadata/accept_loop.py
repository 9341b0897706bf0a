"""Where callers are met: a poll that is remembered is answered on the bare socket, and everybody else is let in.

A caller that connects anew for every poll is gone before the machinery of a connection would have been set up.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from contextlib import suppress

from forewarn.metadata.hall import Hall
from forewarn.metadata.identity import Caller, Callers, Peer, calls_from_loopback
from forewarn.metadata.listener import BACKLOG, Listener
from forewarn.metadata.memory import MOST_BYTES
from forewarn.metadata.protocol import Connection

_log = logging.getLogger(__name__)

_CALLS_PER_TURN = 32  # before those who are inside have theirs
_READ_BYTES = 4 * MOST_BYTES  # at first; little enough to be fed at once
_DEFER_S = 1  # a caller that says nothing is shown to us a second late
_OUT_OF_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_S = 1.0


class Doorstep:
    """One listening socket, from `open` to `close`."""

    def __init__(self, hall: Hall, callers: Callers, listener: Listener, sock: socket.socket) -> None:
        self._hall, self._callers, self._sock = hall, callers, sock
        self._strategy, self._is_loopback = listener.strategy, listener.is_loopback
        self._pause: asyncio.TimerHandle | None = None
        self._entering: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        self._sock.setblocking(False)
        self._sock.listen(BACKLOG)
        option = getattr(socket, "TCP_DEFER_ACCEPT", None)
        if option is not None:
            # Who has connected has spoken then, so that there is something to read (Linux).
            self._sock.setsockopt(socket.IPPROTO_TCP, option, _DEFER_S)
        self._hall.loop.add_reader(self._sock.fileno(), self._meet_some)

    async def close(self) -> None:
        """Meet nobody any more; whoever was met is inside on return."""
        if self._pause is not None:
            self._pause.cancel()
        self._hall.loop.remove_reader(self._sock.fileno())
        self._sock.close()
        if self._entering:
            await asyncio.wait(self._entering)

    def _meet_some(self) -> None:
        for _ in range(_CALLS_PER_TURN):
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    self._rest(error)
                    return
                continue  # it hung up while it waited
            try:
                self._meet(sock, peer)
            except OSError:
                sock.close()  # the caller's doing: it has reset the connection
            except Exception:
                sock.close()
                _log.exception("a caller met a mistake of ours and was hung up on")

    def _rest(self, error: OSError) -> None:
        """Callers wait in the backlog until there is room for them."""
        _log.warning("no room for further connections (%s): trying again in %g s", error.strerror, _PAUSE_S)
        self._hall.loop.remove_reader(self._sock.fileno())
        self._pause = self._hall.loop.call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._hall.loop.add_reader(self._sock.fileno(), self._meet_some)

    def _meet(self, sock: socket.socket, peer: Peer) -> None:
        place = self._strategy.place(sock, peer)
        vm = self._callers.vm_at(place)
        is_local = calls_from_loopback(self._strategy, peer)
        if not self._hall.has_room(vm):
            sock.close()
            return
        try:
            data = sock.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            data = b""

        rest = b""
        answers = self._hall.memory.answers_for(vm, self._is_loopback, is_local)
        answer = answers.get(data) if answers else None
        if answer is not None:
            raw, data = self._hall.memory.repeat(answer), b""
            sent = sock.send(raw, socket.MSG_DONTWAIT)
            if sent == len(raw) and not answer.keep_alive:
                sock.close()
                return
            rest = raw[sent:]
        caller = Caller(place=place, vm=vm, is_loopback=self._is_loopback, is_local=is_local)
        keep_alive = answer is None or answer.keep_alive
        self._let_in(sock, Connection(self._hall, caller, heard=data, unsaid=rest, keep_alive=keep_alive))

    def _let_in(self, sock: socket.socket, connection: Connection) -> None:
        sock.setblocking(False)
        self._hall.admit(connection, connection.caller)
        task = self._hall.loop.create_task(self._enter(sock, connection))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _enter(self, sock: socket.socket, connection: Connection) -> None:
        try:
            await self._hall.loop.connect_accepted_socket(lambda: connection, sock)
        except OSError:
            self._hall.leave(connection)
            with suppress(OSError):
                sock.close()
