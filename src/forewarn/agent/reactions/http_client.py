"""HTTP for reactions: one request per connection that can be cancelled, no redirects, no proxies."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from forewarn.agent.reaction.patience import spare_s
from forewarn.agent.value import Case
from forewarn.client.move import Broken
from forewarn.client.wire import Incoming
from forewarn.errors import Unavailable
from forewarn.protocol.message import Response

ONE_CALL_S = 10.0
_SHORTEST_SECRET = 6  # shorter words, like "Basic", say nothing, or are found in every text
_PORTS = {"http": 80, "https": 443}
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})


class Unreached(Unavailable):
    """There was no answer; the message says why and shows nothing of the address but its host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    ca_file: Path | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)  # among the headers: an answer may repeat them


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    text: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def json(self) -> dict[str, Any]:
        """Its object, {} if it is none."""
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def brief(self) -> str:
        """For a message: the status and the first words, without what was sent in secret."""
        text = self.text
        for word in sorted({word for secret in self.secrets for word in secret.split()}, key=len, reverse=True):
            text = text.replace(word, "…") if len(word) >= _SHORTEST_SECRET else text
        words = " ".join(text.split())[:120]
        return f"{self.status} ({words})" if words else str(self.status)


async def send(call: Call, *, within_s: float = ONE_CALL_S) -> Reply:
    host = urlsplit(call.url).netloc
    try:
        async with asyncio.timeout(max(within_s, 0.0)):
            response = await _exchange(call)
    except TimeoutError:
        raise Unreached(f"{host} gave no answer within {within_s:.1f} s") from None
    except (OSError, Broken, UnicodeError, ssl.SSLError) as error:
        raise Unreached(f"{host} {_why(error)}") from error
    return Reply(status=response.status, text=response.body.decode("utf-8", "replace"), secrets=call.secrets)


async def send_patiently(call: Call, case: Case, *, wait_s: float = 0.5) -> Reply:
    """Again after twice the wait each time, while nobody answers or is too busy, until the time is over."""
    end_s = spare_s(case)
    while True:
        try:
            reply = await send(call, within_s=min(ONE_CALL_S, max(case.left_s() - end_s, 0.05)))
            if reply.status not in _BUSY or case.left_s() - end_s <= wait_s:
                return reply
        except Unreached:
            if case.left_s() - end_s <= wait_s:
                raise
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, 15.0)


async def _exchange(call: Call) -> Response:
    url = urlsplit(call.url)
    trust = ssl.create_default_context(cafile=call.ca_file) if url.scheme == "https" else None
    reader, writer = await asyncio.open_connection(url.hostname, url.port or _PORTS[url.scheme], ssl=trust)
    try:
        writer.write(_written(call, url))
        await writer.drain()
        incoming = Incoming()
        while (response := incoming.feed(await reader.read(64 * 1024))) is None:
            pass
        return response
    finally:
        writer.transport.abort()


def _written(call: Call, url: SplitResult) -> bytes:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    fields = {"Host": url.netloc, "User-Agent": "forewarn-agent", "Connection": "close", **call.headers}
    if call.body or call.method not in ("GET", "HEAD"):
        fields["Content-Length"] = str(len(call.body))
    lines = [f"{call.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + call.body


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted ({error.verify_message}): name its CA with ca_file"
    if isinstance(error, ssl.SSLError):
        return f"does not agree on TLS ({error.reason or 'no reason given'})"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "does not listen"
    if isinstance(error, Broken):
        return f"gave no answer ({error})"
    return f"cannot be reached ({getattr(error, 'strerror', None) or type(error).__name__})"
