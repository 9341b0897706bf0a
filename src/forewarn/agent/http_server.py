"""A small read-only HTTP server for the agent's pages, on loopback by default.

Load balancers, monitoring and `forewarn agent status` use it. No page may change anything.

A health check must be answered even while other clients hold connections open, without sending a request or without
reading their answer. So the time for both is short, and the number of such connections is limited, in total and for
each address: a further connection closes the oldest one of its address, or of the address with the most connections.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from forewarn.errors import Rejected, Unavailable

LOG = logging.getLogger("forewarn.agent")
DEFAULT_LISTEN_ADDRESS = "127.0.0.1:9258"
_MAX_HEAD_BYTES = 8_192
_REQUEST_TIMEOUT_S = 2.0  # for the whole head of a request
_RESPONSE_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 64  # without a request yet; the same number again whose answer is being sent
_MAX_PER_ADDRESS = 16
_JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPage:
    body: bytes  # the whole body
    status: int = 200  # the HTTP status
    content_type: str = _JSON_TYPE  # the value of the header


AgentPages = Mapping[str, Callable[[], AgentPage]]  # functions that make a page, by path
# Pages that a web site of another host must not read in a browser of this machine (DNS rebinding). Load balancers and
# Prometheus use other names in their requests, so their pages are not among them.
_PRIVATE_PAGES = frozenset({"/state"})


def json_page(view: Any, status: int = 200) -> AgentPage:
    """Return a page whose body is this value as one line of JSON, with this HTTP status."""
    return AgentPage(body=json.dumps(view).encode() + b"\n", status=status)


def parse_listen_address(text: str) -> tuple[str, int]:
    """Split `127.0.0.1:9258` or `[::1]:9258` into host (without brackets) and port."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_valid = bool(colon and bare) and (":" not in bare or host != bare)
    if not is_valid or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise Rejected(f'listen = {text!r} is not an address: write "{DEFAULT_LISTEN_ADDRESS}", or "" for none')
    return bare, int(port)


@asynccontextmanager
async def serve_pages(pages: AgentPages, listen: str) -> AsyncIterator[int]:
    """Context manager: serve the pages by GET and HEAD at `listen` (host:port), and yield the port."""
    host, port = parse_listen_address(listen)
    http_server = _HttpServer(pages, own_names=frozenset({"localhost", host.lower(), socket.gethostname().lower()}))
    try:
        server = await asyncio.start_server(http_server.serve, host, port, limit=_MAX_HEAD_BYTES)
    except OSError as error:
        why = error.strerror or error
        raise Unavailable(
            f"the agent cannot listen on {listen} ({why}): free the address, or set another with listen"
        ) from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await http_server.close()
        await server.wait_closed()


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


class _HttpServer:
    def __init__(self, pages: AgentPages, *, own_names: frozenset[str]) -> None:
        self._pages, self._own_names = pages, own_names
        self._waiting: _Connections = {}
        self._responding: _Connections = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            pass  # the client was too slow, was closed for a newer connection, or has gone
        finally:
            writer.transport.abort()

    async def close(self) -> None:
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
            page = self._make_page(method, path)
        writer.write(_encode_response(page, with_body=method != "HEAD"))
        await writer.drain()

    def _make_page(self, method: str, path: str) -> AgentPage:
        if not method:
            return json_page({"error": "the request is not valid HTTP"}, 400)
        if method not in ("GET", "HEAD"):
            return json_page({"error": f"the method {method[:20]!r} is not allowed: these pages are read-only"}, 405)
        make = self._pages.get(path)
        if make is None:
            return json_page({"error": "this page does not exist", "pages": sorted(self._pages)}, 404)
        try:
            return make()
        except Exception:  # an error in a page must not stop the agent
            LOG.exception("the page %s failed", path)
            return json_page({"error": "the page failed: see the agent's log"}, 500)


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


def _encode_response(page: AgentPage, *, with_body: bool) -> bytes:
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
