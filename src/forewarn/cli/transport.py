"""The two ways to reach a service: its unix socket on this machine, or HTTPS with a bearer token.

Signing in takes the steps of Azure's clients: the server names the issuer, the issuer's discovery document names
the token endpoint, and that gives a token for the client's secret. The remote transport fetches a token on its
first call and when the last one has expired.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from forewarn.base.clock import read_real_time
from forewarn.cli.api_client import HttpAnswer, ServiceNotRunning, send_request
from forewarn.cli.credentials import Profile
from forewarn.cli.service_address import SOCKET_NAME, ServerAddress, parse_server_url, start_command
from forewarn.errors import Rejected, Unauthenticated, Unavailable


class LocalTransport:
    """Reaches the service on this machine over the unix socket in its data directory `data`."""

    def __init__(self, data: Path, *, given_data: str | None = None, extra_remedy: str = "") -> None:
        self._data, self._given_data = data, given_data
        self._extra_remedy = extra_remedy

    @property
    def location(self) -> str:
        return f"in {self._data}"

    def send(
        self, method: str, target: str, payload: bytes | None, timeout_s: float, headers: Mapping[str, str]
    ) -> HttpAnswer:
        connection = _UnixSocketConnection(self._data, self._not_running, timeout_s)
        return send_request(connection, method, target, payload, headers)

    def _not_running(self) -> ServiceNotRunning:
        start = start_command(self._data, self._given_data)
        return ServiceNotRunning(
            f"no forewarn service answers in {self._data}: start one with `{start}`{self._extra_remedy}"
        )


class _UnixSocketConnection(http.client.HTTPConnection):
    def __init__(self, data: Path, not_running: Callable[[], ServiceNotRunning], timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._data, self._not_running = data, not_running

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        path = self._data / SOCKET_NAME
        try:
            self.sock.connect(str(path))
        except PermissionError as error:
            raise ServiceNotRunning(
                f"the forewarn service in {self._data} belongs to another user: run this as that user, "
                "or choose another service with --data"
            ) from error
        except (BlockingIOError, TimeoutError) as error:  # it listens, but its queue of connections is full
            raise Unavailable(
                f"the forewarn service in {self._data} accepts no connection now: try again, "
                "and look at its log if this persists"
            ) from error
        except OSError as error:
            if "too long" in str(error):
                raise Rejected(f"the path {str(path)!r} is too long for a socket: choose a shorter --data") from error
            raise self._not_running() from error


ConnectFunction = Callable[[ServerAddress], http.client.HTTPConnection]
_METADATA_PATH = "/metadata/endpoints?api-version=2022-09-01"
_OPENID_CONFIGURATION_PATH = ".well-known/openid-configuration"
_FORM_HEADERS = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")  # characters that a header value can carry
_RENEW_EARLY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerToken:
    """An access token for the API of a remote service, as its issuer gave it; kept in memory only."""

    text: str = field(repr=False)  # the token itself, a secret
    issued_at: float  # seconds since 1970, by this machine's clock
    lifetime_s: float  # as the issuer says; 0: not known, so that it is valid for one request only

    def is_valid_at(self, now: float) -> bool:
        """Return whether the token may still be used at `now`, seconds since 1970 by this machine's clock."""
        return self.issued_at <= now < self.issued_at + max(self.lifetime_s - _RENEW_EARLY_S, self.lifetime_s / 2)


def _fetch_token(profile: Profile, connect: ConnectFunction, now: float) -> BearerToken:
    issuer, scope = profile.issuer, profile.scope
    if not (issuer and scope):
        found = _get_json(f"{profile.server}{_METADATA_PATH}", connect)
        issuer, scope = issuer or _issuer_url(profile, found), scope or _token_scope(profile, found)
    endpoint = _get_json(f"{issuer.rstrip('/')}/{_OPENID_CONFIGURATION_PATH}", connect).get("token_endpoint")
    if not isinstance(endpoint, str):
        raise Rejected(f"issuer {issuer} publishes no token endpoint: give the right one with --issuer")
    return _request_token(profile, endpoint, scope, connect, now)


def _issuer_url(profile: Profile, metadata: dict[str, Any]) -> str:
    return str(_authentication_section(profile, metadata).get("loginEndpoint"))


def _token_scope(profile: Profile, metadata: dict[str, Any]) -> str:
    audiences = _authentication_section(profile, metadata).get("audiences")
    audience = audiences[0] if isinstance(audiences, list) and audiences else profile.server
    return f"{str(audience).rstrip('/')}/.default"


def _authentication_section(profile: Profile, metadata: dict[str, Any]) -> dict[str, Any]:
    found = metadata.get("authentication")
    if not isinstance(found, dict) or not found.get("loginEndpoint"):
        raise Rejected(f"{profile.server} names no issuer, so it is not a forewarn service: check its URL")
    return found


def _request_token(profile: Profile, endpoint: str, scope: str, connect: ConnectFunction, now: float) -> BearerToken:
    form = {
        "grant_type": "client_credentials",
        "client_id": profile.client_id,
        "client_secret": profile.read_secret(),
        "scope": scope,
    }
    status, answer = _send_for_json("POST", endpoint, urlencode(form).encode(), connect)
    text = answer.get("access_token")
    if status >= 400 or not isinstance(text, str) or not _HEADER_SAFE.fullmatch(text):
        raise _token_error(profile, endpoint, status, answer)
    return BearerToken(text=text, issued_at=now, lifetime_s=_parse_lifetime(answer.get("expires_in")))


def _parse_lifetime(expires_in: object) -> float:
    """Seconds, which some issuers send as text; 0 if missing, so that the token is used for one request."""
    try:
        return float(str(expires_in))
    except ValueError:
        return 0.0


def _token_error(profile: Profile, endpoint: str, status: int, answer: dict[str, Any]) -> Rejected | Unavailable:
    if status == 429 or status >= 500:
        return Unavailable(f"{endpoint} answered status {status} and gave no token: try again")
    why = str(answer.get("error_description") or answer.get("error") or f"status {status}").rstrip(".")
    return Unauthenticated(
        f"client {profile.client_id!r} could not sign in at {profile.server} ({why}): "
        "check its id and secret, and run `forewarn login` again"
    )


def _get_json(url: str, connect: ConnectFunction) -> dict[str, Any]:
    status, answer = _send_for_json("GET", url, None, connect)
    if status >= 500:
        raise Unavailable(f"{url} answered status {status}: try again")
    if status >= 400:
        raise Rejected(f"{url} answered status {status}, so it is not a forewarn service or issuer: check its URL")
    return answer


def _send_for_json(
    method: str, url: str, payload: bytes | None, connect: ConnectFunction
) -> tuple[int, dict[str, Any]]:
    server, target = _split_url(url)
    answer = send_request(connect(server), method, target, payload, _FORM_HEADERS if payload is not None else {})
    return answer.status, _parse_json_object(answer.body)


def _split_url(url: str) -> tuple[ServerAddress, str]:
    """Server and request target of a URL; Rejected unless it is https, because a secret will be sent."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Rejected(f"{url!r} is not a URL: give the issuer's with --issuer") from None
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    return parse_server_url(f"{parts.scheme}://{parts.netloc}"), target


def _parse_json_object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


_STATUS_UNAUTHENTICATED = 401
_NAME_MISMATCH_CODES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH and …_IP_ADDRESS_MISMATCH


class RemoteTransport:
    """Reaches a service over HTTPS, signed in as the OAuth client (id and secret) of a profile."""

    # Signs in with the first request, and again if its token has expired or is refused; keeps the token in memory only.

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._server = parse_server_url(profile.server)
        self._token: BearerToken | None = None

    @property
    def location(self) -> str:
        return f"at {self._server}"

    def send(
        self, method: str, target: str, payload: bytes | None, timeout_s: float, headers: Mapping[str, str]
    ) -> HttpAnswer:
        known = self._valid_token()
        token = known or self._fetch_token(timeout_s)
        answer = self._send_with_token(method, target, payload, token, timeout_s, headers)
        if answer.status == _STATUS_UNAUTHENTICATED and known is not None:
            # A 401 means nothing was done, so the request may be repeated: the server may have a new signing key.
            answer = self._send_with_token(method, target, payload, self._fetch_token(timeout_s), timeout_s, headers)
        return answer

    def _valid_token(self) -> BearerToken | None:
        token = self._token
        return token if token is not None and token.is_valid_at(read_real_time()) else None

    def _fetch_token(self, timeout_s: float) -> BearerToken:
        self._token = _fetch_token(
            self._profile, lambda server: self._open_connection(server, timeout_s), read_real_time()
        )
        return self._token

    def _send_with_token(
        self,
        method: str,
        target: str,
        payload: bytes | None,
        token: BearerToken,
        timeout_s: float,
        headers: Mapping[str, str],
    ) -> HttpAnswer:
        connection = self._open_connection(self._server, timeout_s)
        return send_request(connection, method, target, payload, {**headers, "Authorization": f"Bearer {token.text}"})

    def _open_connection(self, server: ServerAddress, timeout_s: float) -> http.client.HTTPConnection:
        return _TlsConnection(server, _tls_context(self._profile.ca, also_system=server != self._server), timeout_s)


def _tls_context(ca: str, *, also_system: bool) -> ssl.SSLContext:
    if not ca:
        return ssl.create_default_context()
    try:
        context = ssl.create_default_context(cafile=None if also_system else ca)
        context.load_verify_locations(ca)
    except OSError as error:  # SSLError too, when the file holds no certificate
        why = "does not exist" if not Path(ca).exists() else f"cannot be used ({error.strerror or error})"
        raise Rejected(f"CA file {ca!r} {why}: fetch it with `forewarn ca export` on the server") from error
    return context


class _TlsConnection(http.client.HTTPSConnection):
    """An HTTPS connection that turns connection failures into errors with a remedy."""

    def __init__(self, server: ServerAddress, context: ssl.SSLContext, timeout_s: float) -> None:
        super().__init__(server.host, server.port, timeout=timeout_s, context=context)
        self._server = server

    def connect(self) -> None:
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            raise Rejected(_untrusted_certificate_message(self._server, error)) from error
        except ssl.SSLError as error:
            raise Rejected(f"TLS handshake with {self._server} failed ({error.reason}): check its port") from error
        except (socket.gaierror, UnicodeError) as error:
            raise Unavailable(f"host {self._server.host!r} cannot be resolved: check its name") from error
        except TimeoutError:
            raise
        except OSError as error:
            raise Unavailable(
                f"no forewarn service answers at {self._server} ({error.strerror or error}): check that it runs, "
                "and the address in its setting 'api'"
            ) from error


def _untrusted_certificate_message(server: ServerAddress, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _NAME_MISMATCH_CODES:
        return (
            f"the certificate of {server} is for other names: use one that `forewarn ca` shows on the server, "
            "or add this name to its setting 'api_names'"
        )
    return (
        f"the certificate of {server} is not trusted ({error.verify_message}): export its CA with `forewarn ca export` "
        "on the server, then use that file in `forewarn login --ca FILE` or FOREWARN_CA"
    )
