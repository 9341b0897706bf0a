"""An OpenID Connect issuer on loopback: real keys over real HTTP; it can rotate keys and be down.

It signs users in without asking. It redeems codes as RFC 6749 and RFC 7636 say: once, for the client that requested
them, with the matching verifier.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import ssl
import threading
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from forewarn.base.clock import read_real_time
from forewarn.base.http_client import HttpClient, LocalTargets

LOOPBACK_CLIENT = HttpClient(local_targets=LocalTargets.LOOPBACK)  # reaches the issuers below


class AuthorizationCodes:
    """Issues and redeems codes for the user with these `claims`; with a `denial`, every sign-in fails."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {"sub": "ann", "preferred_username": "ann@example.org"}
        self.denial = ""
        self.client_id = "forewarn-portal"
        self.secret = ""  # "": a public client
        self.claim_overrides: dict[str, Any] = {}  # claims that replace the true ones in the token
        self._codes: dict[str, dict[str, str]] = {}

    def authorize(self, query: str) -> str:
        """The URL to which the authorization endpoint redirects the browser."""
        parameters = dict(parse_qsl(query))
        if parameters.get("client_id") != self.client_id or parameters.get("response_type") != "code":
            rejected = {"error": "unauthorized_client", "state": parameters["state"]}
            return f"{parameters['redirect_uri']}?{urlencode(rejected)}"
        if self.denial:
            denied = {"error": self.denial, "error_description": "the person said no", "state": parameters["state"]}
            return f"{parameters['redirect_uri']}?{urlencode(denied)}"
        code = secrets.token_urlsafe(16)
        self._codes[code] = parameters
        return f"{parameters['redirect_uri']}?{urlencode({'code': code, 'state': parameters['state']})}"

    def redeem(self, body: bytes, authorization: str) -> tuple[dict[str, Any] | None, str]:
        """The claims for this code and "", or None and the error."""
        form = dict(parse_qsl(body.decode()))
        parameters = self._codes.pop(form.get("code", ""), None)
        if parameters is None or form.get("redirect_uri") != parameters["redirect_uri"]:
            return None, "invalid_grant"
        if not self._is_authenticated(form, authorization):
            return None, "invalid_client"
        if (
            parameters.get("code_challenge_method") != "S256"
            or _code_challenge(form["code_verifier"]) != parameters["code_challenge"]
        ):
            return None, "invalid_grant"
        return {"aud": self.client_id, "nonce": parameters.get("nonce"), **self.claims, **self.claim_overrides}, ""

    def _is_authenticated(self, form: Mapping[str, str], authorization: str) -> bool:
        if not self.secret:
            return form.get("client_id") == self.client_id
        given = b64decode(authorization.removeprefix("Basic ")).decode()
        return [unquote_plus(part) for part in given.split(":")] == [self.client_id, self.secret]


def _code_challenge(verifier: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
DISCOVERY_PATH, KEYS_PATH = "/.well-known/openid-configuration", "/keys"
AUTHORIZE_PATH, TOKEN_PATH = "/authorize", "/token"


class OidcIssuer:
    """Serves while entered. Records `requested_paths`; `answers` (path → status, body) replace its own."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.keys: dict[str, PrivateKey] = {}
        self.published: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.requested_paths: list[str] = []
        self.is_down = False
        self.authorization = AuthorizationCodes()
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
        """Publish only this key, or a new one; `more` are further fields of the published key."""
        self.published = []
        self.add(kid, key, **more)

    def add(self, kid: str, key: PrivateKey | None = None, **more: Any) -> None:
        """Publish one more key."""
        self.keys[kid] = key or rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.published.append({**_jwk(self.keys[kid]), "kid": kid, "use": "sig", **more})

    def token(self, claims: Mapping[str, Any], kid: str = "first", algorithm: str = "RS256") -> str:
        """A signed token with these claims and `iss`; a claim whose value is None is left out."""
        present = {name: value for name, value in {"iss": self.url, **claims}.items() if value is not None}
        return jwt.encode(present, self.keys[kid], algorithm, headers={"kid": kid})

    def _answer(self, target: str, body: bytes | None, authorization: str) -> tuple[int, bytes] | None:
        """Status and body for a request; `body` is None for GET. None hangs up."""
        path, _, query = target.partition("?")
        self.requested_paths.append(path)
        if self.is_down:
            return None
        if path in self.answers:
            return self.answers[path]
        if path == AUTHORIZE_PATH and body is None:
            return 302, self.authorization.authorize(query).encode()
        if path == TOKEN_PATH and body is not None:
            return self._token_response(body, authorization)
        document = self._documents().get(path)
        return (404, b"{}") if document is None else (200, json.dumps(document).encode())

    def _documents(self) -> dict[str, Any]:
        endpoints = {"authorization_endpoint": self.url + AUTHORIZE_PATH, "token_endpoint": self.url + TOKEN_PATH}
        return {
            DISCOVERY_PATH: {"issuer": self.url, "jwks_uri": self.url + KEYS_PATH, **endpoints},
            KEYS_PATH: {"keys": self.published},
        }

    def _token_response(self, body: bytes, authorization: str) -> tuple[int, bytes]:
        claims, error = self.authorization.redeem(body, authorization)
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
