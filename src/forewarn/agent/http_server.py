"""A small read-only HTTP server for the agent's pages, on loopback by default.

Load balancers, monitoring and `forewarn agent status` use it. No page may change anything.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from forewarn.errors import Rejected, Unavailable

LOG = logging.getLogger("forewarn.agent")
DEFAULT_LISTEN_ADDRESS = "127.0.0.1:9258"
_MAX_HEAD_BYTES = 8_192
_REQUEST_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 32  # at a time; further ones are closed at once
_JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPage:
    """A response of the agent's HTTP server."""

    body: bytes
    status: int = 200
    content_type: str = _JSON_TYPE


AgentPages = Mapping[str, Callable[[], AgentPage]]  # functions that make a page, by path


def json_page(view: Any, status: int = 200) -> AgentPage:
    """A page with this value as one line of JSON."""
    return AgentPage(body=json.dumps(view).encode() + b"\n", status=status)


def parse_listen_address(text: str) -> tuple[str, int]:
    """Splits `127.0.0.1:9258` or `[::1]:9258` into host (without brackets) and port. Raises Rejected.

    Port 0 is allowed; the host may be a name.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_valid = bool(colon and bare) and (":" not in bare or host != bare)
    if not is_valid or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise Rejected(f'listen = {text!r} is not an address: write "{DEFAULT_LISTEN_ADDRESS}", or "" for none')
    return bare, int(port)


@asynccontextmanager
async def serve_pages(pages: AgentPages, listen: str) -> AsyncIterator[int]:
    """Context manager: serves the pages, and yields the port (0 in `listen` picks a free one).

    It makes each page on the event loop, at each request; one that raises becomes a 500. Raises Rejected if `listen`
    is not an address, Unavailable if it cannot be used.
    """
    host, port = parse_listen_address(listen)
    http_server = _HttpServer(pages)
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


class _HttpServer:
    def __init__(self, pages: AgentPages) -> None:
        self._pages = pages
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) < _MAX_CONNECTIONS:
                self._connections.add(task)
                await asyncio.wait_for(self._respond(reader, writer), _REQUEST_TIMEOUT_S)
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            pass  # the client was too slow or has gone
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def close(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            head = b""
        method, path = _parse_request_line(head)
        writer.write(_encode_response(self._make_page(method, path), with_body=method != "HEAD"))
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
    """Method and path; ("", "") if the request is not HTTP."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


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
