"""A small read-only HTTP server: the agent's pages, and the metrics of a process on an address that VMs do not call.

Load balancers, monitoring and `forewarn agent status` use it. No page may change anything.

A health check must be answered even while other clients hold connections open, without sending a request or without
reading their answer. So the time for both is short, and the number of such connections is limited, in total and for
each address: a further connection closes the oldest one of its address, or of the address with the most connections.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from forewarn.errors import Rejected

log = logging.getLogger(__name__)
_MAX_HEAD_BYTES = 8_192
_REQUEST_TIMEOUT_S = 2.0  # for the whole head of a request
_RESPONSE_TIMEOUT_S = 10.0  # to make the page and send it
_BACKLOG = 64
MAX_CONNECTIONS = 64  # without a request yet; the same number again whose answer is being sent
_MAX_PER_ADDRESS = 16
_JSON_TYPE = "application/json"
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPage:
    body: bytes  # the whole body
    status: int = 200  # the HTTP status
    content_type: str = _JSON_TYPE  # the value of the header


HttpPages = Mapping[str, Callable[[], HttpPage | Awaitable[HttpPage]]]  # functions that make a page, by path
# Pages that a web site of another host must not read in a browser of this machine (DNS rebinding). Load balancers and
# Prometheus use other names in their requests, so their pages are not among them.
_PRIVATE_PAGES = frozenset({"/state"})


def metrics_pages(render: Callable[[], Awaitable[bytes]]) -> HttpPages:
    """Return the page /metrics with what `render` returns, text for Prometheus."""

    async def page() -> HttpPage:
        return HttpPage(body=await render(), content_type=METRICS_CONTENT_TYPE)

    return {"/metrics": page}


def json_page(view: Any, status: int = 200) -> HttpPage:
    """Return a page whose body is this value as one line of JSON, with this HTTP status."""
    return HttpPage(body=json.dumps(view).encode() + b"\n", status=status)


_Connections = dict[asyncio.Task[None], str]  # the client's address by the connection's task, oldest first


@contextmanager
def _counted(connections: _Connections, address: str) -> Iterator[None]:
    """Context manager: counts the current task's connection; closes the oldest one if there are too many."""
    task: asyncio.Task[None] | None = asyncio.current_task()
    assert task is not None
    connections[task] = address
    counts = Counter(connections.values())
    surplus = address if counts[address] > _MAX_PER_ADDRESS else ""
    if not surplus and counts.total() > MAX_CONNECTIONS:
        surplus = counts.most_common(1)[0][0]
    if surplus:
        oldest = next(each for each, owner in connections.items() if owner == surplus)
        del connections[oldest]
        oldest.cancel()
    try:
        yield
    finally:
        connections.pop(task, None)


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    """The head of the request, b"" if it is too long; None if the client closes before its end."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        return b""


class HttpServer:
    """Serves pages by GET and HEAD, from `start` to `close`, one request for each connection. Nobody signs in."""

    def __init__(self, pages: HttpPages, *, own_names: Iterable[str] = ()) -> None:
        self._pages, self._own_names = pages, frozenset(own_names)
        self._waiting: _Connections = {}
        self._responding: _Connections = {}
        self._server: asyncio.Server | None = None

    async def start(self, **where: Any) -> int:
        """Serve on `sock`, or on `host` and `port`, as `asyncio.start_server` takes them; return the port."""
        self._server = await asyncio.start_server(self._serve, limit=_MAX_HEAD_BYTES, **where)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = _client_address(writer)
        try:
            with _counted(self._waiting, address):
                async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                    head = await _read_head(reader)
            if head is not None:
                with _counted(self._responding, address):
                    async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
                        await self._respond(head, writer)
                        writer.close()
                        await writer.wait_closed()
        except (OSError, asyncio.CancelledError):
            pass  # the client was too slow, was closed for a newer connection, has gone, or cannot be reached
        finally:
            writer.transport.abort()

    async def close(self) -> None:
        """Stop listening, and end all connections at once. Does nothing before `start`."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._waiting, *self._responding]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _respond(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        method, path = _parse_request_line(head)
        if path in _PRIVATE_PAGES and not _is_own_host(head, self._own_names):
            page = json_page(
                {"error": "this page is not served under this host name: use this machine's name or address"}, 421
            )
        else:
            page = await self._make_page(method, path)
        writer.write(_encode_response(page, with_body=method != "HEAD"))
        await writer.drain()

    async def _make_page(self, method: str, path: str) -> HttpPage:
        if not method:
            return json_page({"error": "the request is not valid HTTP"}, 400)
        if method not in ("GET", "HEAD"):
            return json_page({"error": f"the method {method[:20]!r} is not allowed: these pages are read-only"}, 405)
        make = self._pages.get(path)
        if make is None:
            return json_page({"error": "this page does not exist", "pages": sorted(self._pages)}, 404)
        try:
            page = make()
            return page if isinstance(page, HttpPage) else await page
        except Exception:  # an error in a page must not stop the process
            log.exception("the page %s failed", path)
            return json_page({"error": "the page failed: see the log"}, 500)


def _parse_request_line(head: bytes) -> tuple[str, str]:
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


def _client_address(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _is_own_host(head: bytes, own_names: frozenset[str]) -> bool:
    """Whether the request names this machine as its host: by an address or one of these names."""
    # A browser always sends the name of the web site, and an attacker's site has a name of its own.
    fields = (line.partition(":") for line in head.decode("latin-1").lower().split("\r\n")[1:])
    hosts = [value.strip() for name, _, value in fields if name.strip() == "host"]
    return all(_without_port(host) in own_names or _is_address(_without_port(host)) for host in hosts)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).removeprefix("[").removesuffix("]").removesuffix(".")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _encode_response(page: HttpPage, *, with_body: bool) -> bytes:
    headers = [
        f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *(["Allow: GET, HEAD"] if page.status == 405 else []),
        "Connection: close",
    ]
    return "\r\n".join([*headers, "", ""]).encode() + (page.body if with_body else b"")


def bind_metrics_sockets(host: str, port: int, *, workers: int) -> tuple[socket.socket, ...]:
    """Listen on `port` for the owner process and on one port after it per worker; return the sockets."""
    sockets: list[socket.socket] = []
    try:
        for number in range(1 + workers):
            sockets.append(_bind_socket(host, port + number))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return tuple(sockets)


def _bind_socket(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except (OSError, OverflowError) as error:
        sock.close()
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "the port is in use" if is_taken else getattr(error, "strerror", None) or str(error)
        raise Rejected(
            f"metrics cannot be served on {host}:{port}: {why}; change the setting 'metrics' "
            "(each worker uses one of the ports after it)"
        ) from error
    return sock
