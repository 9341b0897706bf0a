"""The service's HTTP client, for webhooks and external issuers: it checks the address it connects to.

A name is resolved once. The addresses are checked, and the connection goes to one of them, so that a name cannot
resolve to something else in between (DNS rebinding). TLS and the Host header use the name. It follows no redirects,
uses no proxies, keeps no connection, and reads a bounded part of the response.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpcore2  # noqa: F401 (httpx2 would import it during the first request, and block the event loop)
import httpx2

from forewarn.base.threads import in_daemon_thread
from forewarn.errors import Rejected, Unavailable

AEAD_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # for TLS 1.2; those of TLS 1.3 are all authenticated. No CBC
_ONE_CONNECTION = httpx2.Limits(max_connections=1, max_keepalive_connections=0)
_NO_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for plain http: it trusts no certificate at all
_MIN_CONNECT_TIMEOUT_S = 1.0
_MAX_ADDRESSES = 8  # addresses of one name that are tried

IpAddress = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # host name and port → addresses; raises OSError


class LocalTargets(StrEnum):
    """The local addresses that the service's HTTP client may call: loopback and link-local ones."""

    NONE = "none"  # no local address
    LOOPBACK = "loopback"  # the loopback addresses of this machine
    LINK_LOCAL = "link-local"  # loopback and link-local addresses, such as the metadata service of a cloud

    def allows(self, address: IpAddress) -> bool:
        """Return whether the client may connect to this address; always True for one that is not local."""
        address = _unmapped(address)
        if address.is_loopback or address.is_unspecified:
            return self is not LocalTargets.NONE
        return self is LocalTargets.LINK_LOCAL or not address.is_link_local


class HttpRequestFailed(Unavailable):
    """`HttpClient.send` got no response. The message is a clause that says why, and calls the server `it`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientResponse:
    """A response of any status, with the part of its body that was read; made by `HttpClient.send`."""

    status: int  # the HTTP status
    headers: Mapping[str, str]  # names in lower case; several values of one name joined by commas
    body: bytes  # at most `HttpLimits.max_body_bytes`, as sent: not decompressed
    is_complete: bool  # False: the body is longer than the limit, took too long or broke off


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """How long one request may take, in seconds of real time, and how much of the response is read."""

    timeout_s: float = 10.0  # until the response begins; includes name resolution, connecting and TLS
    body_timeout_s: float = 1.0  # after that, for the body; what has arrived by then is returned, and is no error
    max_body_bytes: int = 4096  # the rest is not read


async def _resolve_name(host: str, port: int) -> list[str]:
    # Not by the event loop, which has few threads for it: a name server that does not answer holds one for half a
    # minute, even if the caller has given up, and then no request of anybody gets through.
    found = await in_daemon_thread(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


@dataclass(frozen=True, kw_only=True)
class HttpClient:
    """Sends single requests over HTTP or HTTPS to addresses that `local_targets` allows.

    It keeps no connection open, so it need not be closed, and may be used from any event loop.
    """

    local_targets: LocalTargets = LocalTargets.NONE  # local addresses it may call; default: none
    resolve: Resolve = field(default=_resolve_name)  # finds the addresses of a host name

    def require_allowed(self, url: str) -> None:
        """Raise Rejected if the URL's host is an address, or `localhost`, that this client may not call.

        Resolves nothing: other names pass here, and `send` checks their addresses.
        """
        try:
            host = httpx2.URL(url).host
        except httpx2.InvalidURL:
            raise Rejected("the address is not a URL: give one such as https://example.org") from None
        try:
            address = ip_address("127.0.0.1" if host == "localhost" else host)
        except ValueError:
            return
        if not self.local_targets.allows(address):
            raise Rejected(_not_allowed_text(host, address))

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        limits: HttpLimits = HttpLimits(),
    ) -> ClientResponse:
        """Send one request and return the response, of any status; redirects are not followed.

        Tries the allowed addresses of the host in turn, eight at most; the request is sent once. A body that is too
        long, late or broken off is no error: see `ClientResponse.is_complete`.
        """
        try:
            async with asyncio.timeout(limits.timeout_s) as deadline:
                target = httpx2.URL(url)
                requests = [
                    _request_to(address, method, target, headers, body)
                    for address in await self._allowed_addresses(target)
                ]
                return await self._send_to_first(requests, limits, deadline)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise HttpRequestFailed(f"there was no response within {limits.timeout_s:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            raise HttpRequestFailed(_describe_error(error)) from error

    async def _allowed_addresses(self, url: httpx2.URL) -> list[str]:
        host = url.raw_host.decode("ascii")
        try:
            found: Sequence[str] = [str(ip_address(host))]
        except ValueError:
            found = await self.resolve(host, _port(url))
        parsed = [(text, ip_address(text.partition("%")[0])) for text in found]
        allowed = [text for text, address in parsed if self.local_targets.allows(address)]
        if not allowed and parsed:
            raise HttpRequestFailed(f"it is not called: {_not_allowed_text(url.host, parsed[0][1])}")
        return allowed[:_MAX_ADDRESSES]

    async def _send_to_first(
        self, requests: Sequence[httpx2.Request], limits: HttpLimits, deadline: asyncio.Timeout
    ) -> ClientResponse:
        """Send the request to the first address that accepts a connection; nothing is sent twice."""
        connect_s = max(_MIN_CONNECT_TIMEOUT_S, limits.timeout_s / max(1, len(requests)))
        failure: Exception = socket.gaierror(socket.EAI_NONAME, "no address")
        for request in requests:
            request.extensions["timeout"] = {"connect": connect_s}
            try:
                return await self._exchange(request, limits, deadline)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _exchange(self, request: httpx2.Request, limits: HttpLimits, deadline: asyncio.Timeout) -> ClientResponse:
        context = self._tls_context if request.url.scheme == "https" else _NO_TRUST
        async with httpx2.AsyncHTTPTransport(verify=context, trust_env=False, limits=_ONE_CONNECTION) as transport:
            response = await transport.handle_async_request(request)
            deadline.reschedule(None)  # the body has its own limit
            try:
                body, is_complete = await _read_body(response, limits)
            finally:
                await response.aclose()
        return ClientResponse(
            status=response.status_code, headers=dict(response.headers), body=body, is_complete=is_complete
        )

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(AEAD_CIPHERS)
        return context


def _request_to(address: str, method: str, url: httpx2.URL, headers: Mapping[str, str], body: bytes) -> httpx2.Request:
    """Build the request for one address of the host; TLS and the Host header keep the name in `url`."""
    return httpx2.Request(
        method,
        url.copy_with(host=address),
        headers={"Host": url.netloc.decode("ascii"), **headers, "Connection": "close"},
        content=body,
        extensions={"sni_hostname": url.raw_host.decode("ascii")},
    )


async def _read_body(response: httpx2.Response, limits: HttpLimits) -> tuple[bytes, bool]:
    body = bytearray()
    with suppress(TimeoutError, httpx2.HTTPError):  # the status decides: a response that breaks off counts
        async with asyncio.timeout(limits.body_timeout_s):
            # Not decoded: a few compressed bytes could become gigabytes.
            async with aclosing(response.aiter_raw()) as parts:
                async for part in parts:
                    body += part
                    if len(body) > limits.max_body_bytes:
                        break
                else:
                    return bytes(body), True
    return bytes(body[: limits.max_body_bytes]), False


def _port(url: httpx2.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _unmapped(address: IpAddress) -> IpAddress:
    return getattr(address, "ipv4_mapped", None) or address


def _not_allowed_text(host: str, address: IpAddress) -> str:
    address = _unmapped(address)
    kind = LocalTargets.LINK_LOCAL if address.is_link_local else LocalTargets.LOOPBACK
    what = "a link-local address" if address.is_link_local else "this machine"
    return f"{host!r} is {what}, which the setting 'local_targets' does not allow: set it to {kind.value!r}"


def _describe_error(error: BaseException) -> str:
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({cause.verify_message}): set SSL_CERT_FILE to its CA"
        if isinstance(cause, ssl.SSLError):
            return f"the TLS handshake failed ({cause.reason or 'no reason given'})"
        if isinstance(cause, socket.gaierror | UnicodeError):
            return "its name cannot be resolved"
        if isinstance(cause, ConnectionRefusedError):
            return "it refused the connection"
    if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        return "its address is not a URL"
    if isinstance(error, httpx2.RemoteProtocolError):
        return _describe_protocol_error(error)
    if isinstance(error, httpx2.ReadError | httpx2.WriteError):
        return "it closed the connection before it responded"
    reason = next((cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror), "")
    return "it cannot be reached" + (f" ({reason})" if reason else "")


def _describe_protocol_error(error: httpx2.RemoteProtocolError) -> str:
    # The library has one class for both; a server that hangs up is far more common.
    if "disconnected" in str(error) or "closed connection" in str(error):
        return "it closed the connection before it responded"
    return "its response is not HTTP"
