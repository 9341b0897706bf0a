"""Authenticates callers: bearer tokens over TLS, and client ids with their secrets.

Nothing is cached: grants and client secrets are read for each request, so a revocation takes effect at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request

from forewarn.auth.claims import Claims, InvalidToken, quote_excerpt
from forewarn.auth.client_secrets import hash_secret, new_secret, secret_fingerprint, secret_matches
from forewarn.auth.token_service import TokenService
from forewarn.base.clock import read_real_time
from forewarn.core.access import Principal, RegisteredClient, client_principal
from forewarn.errors import Remedy, Unauthenticated
from forewarn.store.interface import Store

log = logging.getLogger(__name__)
Authenticate = Callable[[Request], Awaitable[Principal]]  # the caller of a request; raises Unauthenticated
_CLIENT_PREFIX = client_principal("")
_BEARER = "bearer"
_UNKNOWN_CLIENT_HASH = hash_secret(new_secret())  # compared for an unknown client, so that both cases take as long


class AuthenticationRequired(Unauthenticated):
    """A request's caller is not authenticated; `challenge` is the value of WWW-Authenticate."""

    def __init__(self, message: str, challenge: str) -> None:
        super().__init__(message)
        self.challenge = challenge


class BearerAuthenticator:
    """Authenticates requests by their bearer token; reads the caller's grants for each request."""

    def __init__(self, *, sign_in: TokenService, store: Store, real_time: Callable[[], float] = read_real_time) -> None:
        self._sign_in = sign_in
        self._store = store
        self._real_time = real_time

    async def authenticate(self, request: Request) -> Principal:
        """Verify the request's bearer token, and return its principal with the current name and grants."""
        try:
            claims = await self._sign_in.verify(_bearer_token(request), self._real_time())
            return principal_for_claims(claims, self._store)
        except (InvalidToken, Unauthenticated) as error:
            raise AuthenticationRequired(str(error), self._challenge(request)) from None

    def _challenge(self, request: Request) -> str:
        external = self._sign_in.external
        issuer_url = external.url if external is not None else f"{request.url.scheme}://{request.url.netloc}/adfs"
        return f'Bearer authorization_uri="{issuer_url}", error="invalid_token"'


def principal_for_claims(claims: Claims, store: Store) -> Principal:
    """Return the principal that verified claims of a token name, with its current name and grants."""
    name = _display_name(claims, store)
    grants = tuple(grant for principal_id in claims.ids for grant in store.grants(principal=principal_id))
    return Principal(id=claims.primary_id, name=name, grants=grants)


def _display_name(claims: Claims, store: Store) -> str:
    if claims.vm_id:
        return _vm_display_name(claims, store)
    if not claims.primary_id.startswith(_CLIENT_PREFIX):
        return f"{claims.name} (oidc)"  # the suffix keeps an external user from posing as one of our clients
    return _client_display_name(claims, store)


def _client_display_name(claims: Claims, store: Store) -> str:
    """Rejects a token of an old secret: the id may belong to a new client now."""
    client_id = claims.primary_id.removeprefix(_CLIENT_PREFIX)
    client = store.client(client_id)
    if client is None:
        raise Unauthenticated(f"client {client_id!r} was removed: sign in as another")
    if secret_fingerprint(client.secret_hash) != claims.secret_fingerprint:
        raise Unauthenticated(f"client {client_id!r} has a new secret: sign in with that one")
    return f"client {client_id}"


def _vm_display_name(claims: Claims, store: Store) -> str:
    vm = store.vm(claims.vm_key)
    if vm is None or vm.removed_at is not None or vm.vm_id.casefold() != claims.vm_id.casefold():
        raise Unauthenticated(f"VM {claims.name!r}, the owner of this token, was removed: get a token in another VM")
    return f"VM {vm.name}"


def _bearer_token(request: Request) -> str:
    header = request.headers.get("authorization", "").strip()
    scheme, _, token = header.partition(" ")
    if not header:
        raise Unauthenticated("the request has no Authorization header: sign in and send 'Authorization: Bearer TOKEN'")
    if scheme.lower() != _BEARER or not token.strip():
        raise Unauthenticated("the Authorization header has no bearer token: send 'Authorization: Bearer TOKEN'")
    return token.strip()


def verify_client_secret(client_id: str, secret: str, store: Store) -> RegisteredClient:
    """Return the registered client with this id if `secret` is its secret.

    An unknown id and a wrong secret get the same message, after the same time; both are logged.
    """
    client = store.client(client_id.casefold())
    expected_hash = client.secret_hash if client is not None else _UNKNOWN_CLIENT_HASH
    if not secret_matches(secret, expected_hash) or client is None:
        # An unknown id is not logged: it may be a secret that was typed into the wrong field.
        log.info("sign-in failed for %s", quote_excerpt(client.id) if client is not None else "an unknown client")
        raise Unauthenticated(
            f"client {quote_excerpt(client_id)} does not exist, or this is not its secret", Remedy.LIST_CLIENTS
        )
    return client
