"""A TCP proxy that breaks or silences a connection at a chosen moment, for tests of lost answers."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from enum import StrEnum


class BreakAt(StrEnum):
    """What happens to the connection that sends the awaited bytes."""

    BEFORE = "before the server gets them"
    AFTER = "after the server has answered, before the client gets the answer"


class BreakingProxy:
    """Listens on a loopback port and forwards to `port`.

    `break_connection` arms it for one break, `silence_connection` for one connection that gets no answer any more.
    Of answers it forwards `answers_per_s` bytes a second.
    """

    def __init__(self, port: int, *, answers_per_s: float = float("inf")) -> None:
        self._target, self._answers_per_s = port, answers_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._armed: tuple[bytes, BreakAt] | None = None
        self._silenced: bytes | None = None
        self._sockets: list[socket.socket] = []
        self.breaks = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def break_connection(self, awaited: bytes, at: BreakAt) -> None:
        """Break the first connection whose client sends these bytes."""
        self._armed = (awaited, at)

    def silence_connection(self, awaited: bytes) -> None:
        """Forward nothing more of the first connection whose client sends these bytes, and leave it open."""
        self._silenced = awaited

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            threading.Thread(target=self._forward_requests, args=(client, server), daemon=True).start()

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        holds = threading.Event()  # the next answer breaks the connection
        threading.Thread(target=self._forward_answers, args=(client, server, holds), daemon=True).start()
        with suppress(OSError):
            while data := client.recv(65536):
                if self._silenced is not None and self._silenced in data:
                    self._silenced = None
                    while client.recv(65536):
                        pass
                    break
                armed = self._armed
                if armed is not None and armed[0] in data:
                    self._armed = None
                    self.breaks += 1
                    if armed[1] is BreakAt.BEFORE:
                        break
                    holds.set()
                server.sendall(data)
        _end(client, server)

    def _forward_answers(self, client: socket.socket, server: socket.socket, holds: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if holds.is_set():
                    break
                time.sleep(len(data) / self._answers_per_s)
                client.sendall(data)
        _end(client, server)


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
