"""A blocking connection, and one exchange over it."""

from __future__ import annotations

import socket
import time
from types import TracebackType

from forewarn.client.endpoint import Endpoint
from forewarn.client.move import Broken, Send, broken, unreachable
from forewarn.client.wire import Incoming, written
from forewarn.protocol.message import Request, Response


class Line:
    """A connection that is kept from one request of a talk to the next."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, move: Send) -> Response:
        is_kept = self._socket is not None and self._endpoint == move.endpoint
        incoming = Incoming()
        sock = self._socket if is_kept and self._socket else self._connect(move)
        try:
            sock.settimeout(move.patience_s)
            sock.sendall(written(move.request, move.endpoint))
            response = _received(sock, incoming, move)
        except (OSError, Broken) as error:
            self.close()
            raise broken(move.endpoint, error, may_be_stale=is_kept and not incoming.began) from error
        except BaseException:
            self.close()
            raise
        if not incoming.keeps:
            self.close()
        return response

    def _connect(self, move: Send) -> socket.socket:
        self.close()
        try:
            at = (move.endpoint.host, move.endpoint.port)
            self._socket = socket.create_connection(at, timeout=min(move.connect_s, move.patience_s))
        except (OSError, UnicodeError) as error:
            raise unreachable(move.endpoint, error) from error
        self._endpoint = move.endpoint
        return self._socket


def _received(sock: socket.socket, incoming: Incoming, move: Send) -> Response:
    deadline = time.monotonic() + move.patience_s + move.body_s
    while (left_s := deadline - time.monotonic()) > 0:
        sock.settimeout(min(left_s, move.patience_s))
        response = incoming.feed(sock.recv(65536))
        if response is not None:
            return response
    raise TimeoutError("timed out")


def send(endpoint: Endpoint, request: Request, patience_s: float) -> Response:
    """One exchange, whatever its answer means. Raises Unreachable, or Unavailable if the answer broke off."""
    with Line() as line:
        return line.send(Send(endpoint=endpoint, request=request, patience_s=patience_s))
