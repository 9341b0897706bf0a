"""The agent's own HTTP server, for load balancers, monitoring and `forewarn agent status`: a few pages to read, on
loopback unless the configuration says otherwise. Never here: a page that changes anything.
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
LISTEN = "127.0.0.1:9258"
_HEAD_BYTES = 8_192
_PATIENCE_S = 5.0
_MOST_CALLERS = 32  # at a time; whoever comes then is let go at once
_JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    body: bytes
    status: int = 200
    content_type: str = _JSON


Pages = Mapping[str, Callable[[], Page]]  # by path


def json_page(view: Any, status: int = 200) -> Page:
    return Page(body=json.dumps(view).encode() + b"\n", status=status)


def read_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:9258` or `[::1]:9258`."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_whole = bool(colon and bare) and (":" not in bare or host != bare)
    if not is_whole or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise Rejected(f'listen = {text!r} is no address: write "{LISTEN}", or "" for none')
    return bare, int(port)


@asynccontextmanager
async def showing(pages: Pages, listen: str) -> AsyncIterator[int]:
    """The server, for as long as the context lasts; gives its port (0 in `listen` is any that is free)."""
    host, port = read_address(listen)
    face = _Face(pages)
    try:
        server = await asyncio.start_server(face.serve, host, port, limit=_HEAD_BYTES)
    except OSError as error:
        why = error.strerror or error
        raise Unavailable(f"the agent cannot listen on {listen} ({why}): free it, or set listen to another") from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await face.close()
        await server.wait_closed()


class _Face:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._callers: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._callers) < _MOST_CALLERS:
                self._callers.add(task)
                await asyncio.wait_for(self._answer(reader, writer), _PATIENCE_S)
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            pass  # whoever does not wait for the answer, or sends no question, gets none
        finally:
            self._callers.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def close(self) -> None:
        for task in self._callers:
            task.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            head = b""
        method, path = _asked(head)
        writer.write(_response(self._page(method, path), with_body=method != "HEAD"))
        await writer.drain()

    def _page(self, method: str, path: str) -> Page:
        if not method:
            return json_page({"error": "that is no HTTP request that can be read here"}, 400)
        if method not in ("GET", "HEAD"):
            return json_page({"error": f"{method[:20]!r} is not done here: these pages are only read"}, 405)
        make = self._pages.get(path)
        if make is None:
            return json_page({"error": "there is no such page", "pages": sorted(self._pages)}, 404)
        try:
            return make()
        except Exception:  # a page that breaks must not break the agent, and tells a load balancer so
            LOG.exception("the page %s broke", path)
            return json_page({"error": "the page broke: the agent's log says why"}, 500)


def _asked(head: bytes) -> tuple[str, str]:
    """Method and path; two empty texts if there are none."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


def _response(page: Page, *, with_body: bool) -> bytes:
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
