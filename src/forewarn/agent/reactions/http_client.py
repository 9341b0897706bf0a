"""HTTP client for reactions: one cancellable request per connection, no redirects, no proxies."""

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

from forewarn.agent.model import StepContext
from forewarn.agent.reactions.step_context import reserve_s
from forewarn.client.effects import IncompleteResponse
from forewarn.client.http1 import ResponseReader
from forewarn.errors import Unavailable
from forewarn.protocol.http_message import HttpResponse

CALL_TIMEOUT_S = 10.0  # of one try
_MIN_REDACTED_LENGTH = 6  # shorter words, like "Basic", are not secret and occur in ordinary text
_DEFAULT_PORTS = {"http": 80, "https": 443}
_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpCallFailed(Unavailable):
    """No usable reply came; the message has the host and the reason for people, and no secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """One HTTP request to send; `send_call` and `send_with_retries` send it."""

    url: str  # http or https; checked before, with `options.check_url`
    method: str = "GET"  # the HTTP method
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # in addition to Host and the like
    body: bytes = field(default=b"", repr=False)  # b"" for none
    ca_file: Path | None = None  # the CAs to trust for https; None: the system's
    secrets: tuple[str, ...] = field(default=(), repr=False)  # secret values, to be hidden in `HttpReply.summary`


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """The reply to a call, of any status. `summary` hides the secrets; `text` and `json` do not."""

    status: int  # the HTTP status
    text: str  # the whole body, decoded as UTF-8; it may contain secrets
    secrets: tuple[str, ...] = field(default=(), repr=False)  # those of the call

    @property
    def ok(self) -> bool:
        """True if the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object, parsed at each access; {} if it is not JSON, or not an object."""
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def summary(self) -> str:
        """Status and the first 120 characters of the text on one line, for people: `503 (not ready)`."""
        text = self.text
        for word in sorted({word for secret in self.secrets for word in secret.split()}, key=len, reverse=True):
            text = text.replace(word, "…") if len(word) >= _MIN_REDACTED_LENGTH else text
        words = " ".join(text.split())[:120]
        return f"{self.status} ({words})" if words else str(self.status)


async def send_call(call: HttpCall, *, timeout_s: float = CALL_TIMEOUT_S) -> HttpReply:
    """Send a call once, on a new connection, and return its reply, of any status; follow no redirects."""
    host = urlsplit(call.url).netloc
    try:
        async with asyncio.timeout(max(timeout_s, 0.0)):
            response = await _exchange(call)
    except TimeoutError:
        raise HttpCallFailed(f"{host} gave no answer within {timeout_s:.1f} s") from None
    except (OSError, IncompleteResponse, UnicodeError, ssl.SSLError) as error:
        raise HttpCallFailed(f"{host} {_error_text(error)}") from error
    return HttpReply(status=response.status, text=response.body.decode("utf-8", "replace"), secrets=call.secrets)


async def send_with_retries(call: HttpCall, context: StepContext, *, wait_s: float = 0.5) -> HttpReply:
    """Send a call; retry while there is no reply, or the status is 408, 425, 429, 500, 502, 503 or 504.

    The delays double from `wait_s` seconds to 15 s, as long as the step's time lasts. The receiver may get the call
    more than once.
    """
    reserved_s = reserve_s(context)
    while True:
        try:
            reply = await send_call(call, timeout_s=min(CALL_TIMEOUT_S, max(context.left_s() - reserved_s, 0.05)))
            if reply.status not in _RETRIED_STATUSES or context.left_s() - reserved_s <= wait_s:
                return reply
        except HttpCallFailed:
            if context.left_s() - reserved_s <= wait_s:
                raise
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, 15.0)


async def _exchange(call: HttpCall) -> HttpResponse:
    url = urlsplit(call.url)
    tls = ssl.create_default_context(cafile=call.ca_file) if url.scheme == "https" else None
    reader, writer = await asyncio.open_connection(url.hostname, url.port or _DEFAULT_PORTS[url.scheme], ssl=tls)
    try:
        writer.write(_encode_call(call, url))
        await writer.drain()
        response_reader = ResponseReader()
        while (response := response_reader.feed(await reader.read(64 * 1024))) is None:
            pass
        return response
    finally:
        writer.transport.abort()


def _encode_call(call: HttpCall, url: SplitResult) -> bytes:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    fields = {"Host": url.netloc, "User-Agent": "forewarn-agent", "Connection": "close", **call.headers}
    if call.body or call.method not in ("GET", "HEAD"):
        fields["Content-Length"] = str(len(call.body))
    lines = [f"{call.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + call.body


def _error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted ({error.verify_message}): set ca_file to its CA"
    if isinstance(error, ssl.SSLError):
        return f"failed the TLS handshake ({error.reason or 'no reason given'})"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "refuses connections"
    if isinstance(error, IncompleteResponse):
        return f"gave no answer ({error})"
    return f"cannot be reached ({getattr(error, 'strerror', None) or type(error).__name__})"
