"""Where people sign in at the issuer of `forewarn.testing.oidc`: they are let through at once, and codes are redeemed
as the standard says (RFC 6749, RFC 7636): once, by the client that asked, with the verifier that fits.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode


class SignInDesk:
    """`person` are the claims of whoever sits before the browser. `denies`: the error that sends everybody back."""

    def __init__(self) -> None:
        self.person: dict[str, Any] = {"sub": "ann", "preferred_username": "ann@example.org"}
        self.denies = ""
        self.client_id = "forewarn-portal"
        self.secret = ""  # "": a public client
        self.says_instead: dict[str, Any] = {}  # in the token, over what would be true
        self._codes: dict[str, dict[str, str]] = {}

    def send_back(self, query: str) -> str:
        """Where the browser is sent from the authorization endpoint."""
        asked = dict(parse_qsl(query))
        if asked.get("client_id") != self.client_id or asked.get("response_type") != "code":
            return f"{asked['redirect_uri']}?{urlencode({'error': 'unauthorized_client', 'state': asked['state']})}"
        if self.denies:
            told = {"error": self.denies, "error_description": "the person said no", "state": asked["state"]}
            return f"{asked['redirect_uri']}?{urlencode(told)}"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def redeem(self, body: bytes, authorization: str) -> tuple[dict[str, Any] | None, str]:
        """The claims for this code; None and why."""
        form = dict(parse_qsl(body.decode()))
        asked = self._codes.pop(form.get("code", ""), None)
        if asked is None or form.get("redirect_uri") != asked["redirect_uri"]:
            return None, "invalid_grant"
        if not self._is_proven(form, authorization):
            return None, "invalid_client"
        if asked.get("code_challenge_method") != "S256" or _challenge(form["code_verifier"]) != asked["code_challenge"]:
            return None, "invalid_grant"
        return {"aud": self.client_id, "nonce": asked.get("nonce"), **self.person, **self.says_instead}, ""

    def _is_proven(self, form: Mapping[str, str], authorization: str) -> bool:
        if not self.secret:
            return form.get("client_id") == self.client_id
        given = b64decode(authorization.removeprefix("Basic ")).decode()
        return [unquote_plus(part) for part in given.split(":")] == [self.client_id, self.secret]


def _challenge(verifier: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
