"""An issuer of tokens on loopback (OpenID Connect), for tests: real keys, real HTTP; it can rotate keys and be down.

People sign in at its `desk`.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from forewarn.clock import read_real_time
from forewarn.testing.oidc_desk import SignInDesk

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
DISCOVERY, KEYS = "/.well-known/openid-configuration", "/keys"
AUTHORIZE, TOKEN = "/authorize", "/token"


class OidcIssuer:
    """Serves while entered. `asked` lists the paths that were asked for; `answers` replaces what a path answers."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.keys: dict[str, PrivateKey] = {}
        self.published: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.down = False
        self.desk = SignInDesk()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer))
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        self.rotate("first")

    def __enter__(self) -> OidcIssuer:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def rotate(self, kid: str, key: PrivateKey | None = None, **more: Any) -> None:
        """From now on sign with this key, or a new one, and publish no other; `more` goes into what is published."""
        self.published = []
        self.add(kid, key, **more)

    def add(self, kid: str, key: PrivateKey | None = None, **more: Any) -> None:
        """Publish one more key."""
        self.keys[kid] = key or rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.published.append({**_jwk(self.keys[kid]), "kid": kid, "use": "sig", **more})

    def token(self, claims: Mapping[str, Any], kid: str = "first", algorithm: str = "RS256") -> str:
        """A token with these claims; None leaves one out."""
        said = {name: value for name, value in {"iss": self.url, **claims}.items() if value is not None}
        return jwt.encode(said, self.keys[kid], algorithm, headers={"kid": kid})

    def _answer(self, target: str, body: bytes | None, authorization: str) -> tuple[int, bytes] | None:
        """`body` is None of those who only look."""
        path, _, query = target.partition("?")
        self.asked.append(path)
        if self.down:
            return None
        if path in self.answers:
            return self.answers[path]
        if path == AUTHORIZE and body is None:
            return 302, self.desk.send_back(query).encode()
        if path == TOKEN and body is not None:
            return self._redeemed(body, authorization)
        document = self._documents().get(path)
        return (404, b"{}") if document is None else (200, json.dumps(document).encode())

    def _documents(self) -> dict[str, Any]:
        endpoints = {"authorization_endpoint": self.url + AUTHORIZE, "token_endpoint": self.url + TOKEN}
        return {
            DISCOVERY: {"issuer": self.url, "jwks_uri": self.url + KEYS, **endpoints},
            KEYS: {"keys": self.published},
        }

    def _redeemed(self, body: bytes, authorization: str) -> tuple[int, bytes]:
        claims, error = self.desk.redeem(body, authorization)
        if claims is None:
            return 400, json.dumps({"error": error}).encode()
        token = self.token({"exp": int(read_real_time()) + 600, **claims}, kid=next(reversed(self.keys)))
        return 200, json.dumps({"token_type": "Bearer", "access_token": "opaque", "id_token": token}).encode()


def _jwk(key: PrivateKey) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        return jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)


def _handler(answer: Callable[[str, bytes | None, str], tuple[int, bytes] | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes | None) -> None:
            found = answer(self.path, body, self.headers.get("Authorization", ""))
            if found is None:
                return  # hangs up
            status, body = found
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", body.decode())
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
