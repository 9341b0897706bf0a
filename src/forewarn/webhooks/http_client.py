"""The HTTP client for receivers: one request per connection, no redirects, no proxies.

Only the first bytes of a response body are read, within a short timeout.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from functools import cached_property
from urllib.parse import SplitResult, urlsplit

import h11

from forewarn.webhooks.message import ReceiverUnreachable, WebhookRequest, WebhookResponse

_MAX_BODY_BYTES = 4096
_DEFAULT_PORTS = {"http": 80, "https": 443}


class WebhookHttpClient:
    """`send` is a `Send`. Certificates are checked against the system's, or against SSL_CERT_FILE."""

    def __init__(self, *, patience_s: float = 10.0, body_patience_s: float = 1.0) -> None:
        self._timeout_s = patience_s
        self._body_timeout_s = body_patience_s

    async def send(self, letter: WebhookRequest) -> WebhookResponse:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(letter)
        except TimeoutError as error:
            raise ReceiverUnreachable(f"there was no answer within {self._timeout_s:g} s") from error
        except (OSError, h11.RemoteProtocolError, UnicodeError) as error:
            raise ReceiverUnreachable(_describe_error(error)) from error

    async def _exchange(self, letter: WebhookRequest) -> WebhookResponse:
        url = urlsplit(letter.url)
        reader, writer = await asyncio.open_connection(
            url.hostname,
            url.port or _DEFAULT_PORTS[url.scheme],
            ssl=self._tls_context if url.scheme == "https" else None,
        )
        try:
            connection = h11.Connection(h11.CLIENT)
            writer.write(_encode_request(connection, url, letter))
            await writer.drain()
            return await self._read_response(connection, reader)
        finally:
            writer.transport.abort()  # whatever is left of the answer is not waited for

    async def _read_response(self, connection: h11.Connection, reader: asyncio.StreamReader) -> WebhookResponse:
        while not isinstance(event := await _next_event(connection, reader), h11.Response):
            pass
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        body = bytearray()
        # The status says it all: an answer that breaks off after it is as good.
        with suppress(TimeoutError, OSError, h11.RemoteProtocolError):
            async with asyncio.timeout(self._body_timeout_s):
                while len(body) < _MAX_BODY_BYTES and isinstance(
                    part := await _next_event(connection, reader), h11.Data
                ):
                    body += part.data
        return WebhookResponse(status=event.status_code, headers=headers, body=bytes(body[:_MAX_BODY_BYTES]))

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _encode_request(connection: h11.Connection, url: SplitResult, letter: WebhookRequest) -> bytes:
    headers = {
        "Host": url.netloc,
        **letter.headers,
        "Content-Length": str(len(letter.body)),
        "Connection": "close",
    }
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    head = connection.send(h11.Request(method=letter.method, target=target, headers=list(headers.items())))
    body = connection.send(h11.Data(data=letter.body))
    return (head or b"") + (body or b"") + (connection.send(h11.EndOfMessage()) or b"")


async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
    while (event := connection.next_event()) is h11.NEED_DATA:
        if not (data := await reader.read(_MAX_BODY_BYTES)):
            raise ConnectionResetError("closed")
        connection.receive_data(data)
    if not isinstance(event, h11.Event):
        raise ConnectionResetError("paused")
    return event


def _describe_error(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): name its CA with SSL_CERT_FILE"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no reason given'})"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its name cannot be resolved"
    if isinstance(error, h11.RemoteProtocolError):
        return "what came back is no HTTP"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, ConnectionError):
        return "the connection was closed before an answer came"
    return "it cannot be reached" + (f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else "")
