"""A service elsewhere, over HTTPS: signs in when it is first asked something, and again when the token runs out."""

from __future__ import annotations

import http.client
import socket
import ssl
from pathlib import Path

from forewarn.cli.connection import exchange
from forewarn.cli.profile import Profile
from forewarn.cli.server import Server, read_server
from forewarn.cli.signin import Token, sign_in
from forewarn.clock import read_real_time
from forewarn.errors import Rejected, Unavailable

_UNAUTHENTICATED = 401
_OTHER_NAMES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH and …_IP_ADDRESS_MISMATCH


class Remote:
    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._server = read_server(profile.server)
        self._token: Token | None = None

    @property
    def where(self) -> str:
        return f"at {self._server}"

    def send(self, method: str, target: str, payload: bytes | None, patience_s: float) -> tuple[int, bytes]:
        known = self._known()
        token = known or self._sign_in(patience_s)
        status, raw = self._send(method, target, payload, token, patience_s)
        if status == _UNAUTHENTICATED and known is not None:
            # Refused before anything was done, so it may be asked again: the server may have another key by now.
            status, raw = self._send(method, target, payload, self._sign_in(patience_s), patience_s)
        return status, raw

    def _known(self) -> Token | None:
        token = self._token
        return token if token is not None and token.lasts_at(read_real_time()) else None

    def _sign_in(self, patience_s: float) -> Token:
        self._token = sign_in(self._profile, lambda server: self._connection(server, patience_s), read_real_time())
        return self._token

    def _send(
        self, method: str, target: str, payload: bytes | None, token: Token, patience_s: float
    ) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {token.text}"}
        return exchange(self._connection(self._server, patience_s), method, target, payload, headers)

    def _connection(self, server: Server, patience_s: float) -> http.client.HTTPConnection:
        return _TlsConnection(server, _trusting(self._profile.ca, also_system=server != self._server), patience_s)


def _trusting(ca: str, *, also_system: bool) -> ssl.SSLContext:
    """Whom to believe: the server's own CA alone for the server, the system's too for an issuer somewhere else."""
    if not ca:
        return ssl.create_default_context()
    try:
        context = ssl.create_default_context(cafile=None if also_system else ca)
        context.load_verify_locations(ca)
    except OSError as error:  # also what ssl raises, of a file that holds something else
        why = "does not exist" if not Path(ca).exists() else f"cannot be used ({error.strerror or error})"
        raise Rejected(f"CA file {ca!r} {why}: fetch it with `forewarn ca export` on the server") from error
    return context


class _TlsConnection(http.client.HTTPSConnection):
    """What keeps the two apart is told once, here."""

    def __init__(self, server: Server, context: ssl.SSLContext, patience_s: float) -> None:
        super().__init__(server.host, server.port, timeout=patience_s, context=context)
        self._server = server

    def connect(self) -> None:
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            raise Rejected(_distrust(self._server, error)) from error
        except ssl.SSLError as error:
            raise Rejected(f"{self._server} does not speak TLS as we do ({error.reason}): check its port") from error
        except (socket.gaierror, UnicodeError) as error:
            raise Unavailable(f"host {self._server.host!r} is not known: check its name") from error
        except TimeoutError:
            raise
        except OSError as error:
            raise Unavailable(
                f"no forewarn service answers at {self._server} ({error.strerror or error}): see whether it runs, "
                "and with which setting 'console'"
            ) from error


def _distrust(server: Server, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _OTHER_NAMES:
        return (
            f"the certificate of {server} is for other names: call it by one that `forewarn ca` shows on the server, "
            "or add this one to its setting 'console_names'"
        )
    return (
        f"the certificate of {server} is not trusted ({error.verify_message}): get its CA with `forewarn ca export` "
        "on the server, and give that file with `forewarn login --ca FILE` or as FOREWARN_CA"
    )
