"""An HTTP server with scripted replies, over TCP, TLS or a unix socket; it records its requests."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import ssl
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forewarn.protocol.http_message import HttpRequest

_HANDSHAKE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    resets: bool = False  # reset the connection instead of answering
    closes: bool = False  # close the connection after the answer, without announcing it


def json_reply(view: Any, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> ScriptedReply:
    """A reply in JSON."""
    return ScriptedReply(status=status, body=json.dumps(view).encode(), headers=headers)


class ScriptedServer:
    """Gives the replies in order, and repeats the last one. Use it as a context manager."""

    def __init__(self, *replies: ScriptedReply, path: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[HttpRequest] = []
        self.connections = 0
        self._replies: Sequence[ScriptedReply] = replies
        self._lock = threading.Lock()
        self._scheme = "https" if tls else "http"
        self._server = _unix_server(self, path) if path else _tcp_server(self, tls)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        address: Any = self._server.server_address
        return f"{self._scheme}://{address[0]}:{address[1]}"

    def next_reply(self, request: HttpRequest) -> ScriptedReply:
        """Record a request and return its reply; called by the server's threads."""
        with self._lock:
            self.requests.append(request)
            return self._replies[min(len(self.requests), len(self._replies)) - 1]

    def count_connection(self) -> None:
        with self._lock:
            self.connections += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ScriptedServer

    def setup(self) -> None:
        super().setup()
        self.script.count_connection()

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        headers = tuple((name.lower(), value) for name, value in self.headers.items())
        body = self.rfile.read(length)
        reply = self.script.next_reply(HttpRequest(method=self.command, target=self.path, headers=headers, body=body))
        if reply.resets:
            self._reset()
        else:
            self._write(reply)
            self.close_connection = self.close_connection or reply.closes

    do_GET = do_POST = do_DELETE = _serve

    def _write(self, reply: ScriptedReply) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        if reply.status != 304:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Print no access log."""


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Make the TLS handshake in the request's own thread; ignore a client that breaks it off."""
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_HANDSHAKE_TIMEOUT_S)
        try:
            with self.tls.wrap_socket(request, server_side=True) as secured:
                super().finish_request(secured, client_address)
        except OSError:
            pass

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that closes before it has its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.close_request(request)  # no shutdown first, so that a reset is a reset


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def _tcp_server(script: ScriptedServer, tls: ssl.SSLContext | None) -> socketserver.BaseServer:
    server = _TcpServer(("127.0.0.1", 0), _handler(script))
    server.tls = tls
    return server


def _unix_server(script: ScriptedServer, path: Path) -> socketserver.BaseServer:
    return _UnixServer(str(path), _handler(script))


def _handler(script: ScriptedServer) -> type[_Handler]:
    return type("_ScriptedHandler", (_Handler,), {"script": script})
