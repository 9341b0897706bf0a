"""The service on this machine, over the unix socket in its data directory: whoever may open that is its owner."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

from forewarn.cli.connection import NotRunning, exchange
from forewarn.cli.place import SOCKET
from forewarn.errors import Rejected


class Local:
    def __init__(self, data: Path, or_else: str = "") -> None:
        self._data = data
        self._or_else = or_else  # what may help besides starting one

    @property
    def where(self) -> str:
        return f"in {self._data}"

    def send(self, method: str, target: str, payload: bytes | None, patience_s: float) -> tuple[int, bytes]:
        return exchange(_UnixConnection(self._data, self._or_else, patience_s), method, target, payload, {})


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, data: Path, or_else: str, patience_s: float) -> None:
        super().__init__("localhost", timeout=patience_s)
        self._data, self._or_else = data, or_else

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        path = self._data / SOCKET
        try:
            self.sock.connect(str(path))
        except PermissionError as error:
            raise NotRunning(
                f"the forewarn service in {self._data} belongs to another user: run this as that user, "
                "or name another service with --data"
            ) from error
        except OSError as error:
            if "too long" in str(error):
                raise Rejected(f"the path {str(path)!r} is too long for a socket: choose a shorter --data") from error
            raise NotRunning(
                f"no forewarn service answers in {self._data}: start one with `forewarn up`{self._or_else}"
            ) from error
