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
    """Sends webhook requests over HTTP or HTTPS, without following redirects or using proxies.

    Trusts the system's certificates, or those of SSL_CERT_FILE. `timeout_s` limits the whole request, `body_timeout_s`
    the reading of the body, which is then cut.
    """

    def __init__(self, *, timeout_s: float = 10.0, body_timeout_s: float = 1.0) -> None:
        self._timeout_s = timeout_s
        self._body_timeout_s = body_timeout_s

    async def send(self, request: WebhookRequest) -> WebhookResponse:
        """Sends a request; returns the response of any status, with at most 4 KiB of its body.

        Raises ReceiverUnreachable if no response begins within the timeout.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(request)
        except TimeoutError as error:
            raise ReceiverUnreachable(f"there was no response within {self._timeout_s:g} s") from error
        except (OSError, h11.RemoteProtocolError, UnicodeError) as error:
            raise ReceiverUnreachable(_describe_error(error)) from error

    async def _exchange(self, request: WebhookRequest) -> WebhookResponse:
        url = urlsplit(request.url)
        reader, writer = await asyncio.open_connection(
            url.hostname,
            url.port or _DEFAULT_PORTS[url.scheme],
            ssl=self._tls_context if url.scheme == "https" else None,
        )
        try:
            connection = h11.Connection(h11.CLIENT)
            writer.write(_encode_request(connection, url, request))
            await writer.drain()
            return await self._read_response(connection, reader)
        finally:
            writer.transport.abort()  # does not wait for the rest of the response

    async def _read_response(self, connection: h11.Connection, reader: asyncio.StreamReader) -> WebhookResponse:
        while not isinstance(event := await _next_event(connection, reader), h11.Response):
            pass
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        body = bytearray()
        # The status decides: a response that breaks off after its head counts.
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


def _encode_request(connection: h11.Connection, url: SplitResult, request: WebhookRequest) -> bytes:
    headers = {
        "Host": url.netloc,
        **request.headers,
        "Content-Length": str(len(request.body)),
        "Connection": "close",
    }
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    head = connection.send(h11.Request(method=request.method, target=target, headers=list(headers.items())))
    body = connection.send(h11.Data(data=request.body))
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
        return f"its certificate is not trusted ({error.verify_message}): set SSL_CERT_FILE to its CA"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed ({error.reason or 'no reason given'})"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its name cannot be resolved"
    if isinstance(error, h11.RemoteProtocolError):
        return "its response is not HTTP"
    if isinstance(error, ConnectionRefusedError):
        return "it refused the connection"
    if isinstance(error, ConnectionError):
        return "it closed the connection before it responded"
    return "it cannot be reached" + (f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else "")
