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
from forewarn.clock import read_real_time
from forewarn.core.access import Principal, RegisteredClient, client_principal
from forewarn.errors import Remedy, Unauthenticated
from forewarn.store.interface import Store

_CLIENT_PREFIX = client_principal("")
_BEARER = "bearer"


class AuthenticationRequired(Unauthenticated):
    """Nobody whom we know. The challenge is the header that tells a program where to sign in."""

    def __init__(self, sentence: str, challenge: str) -> None:
        super().__init__(sentence)
        self.challenge = challenge


class BearerAuthenticator:
    """Lets in whoever a token speaks for; nothing is remembered, so that what is revoked counts at once."""

    def __init__(self, *, sign_in: TokenService, store: Store, real_time: Callable[[], float] = read_real_time) -> None:
        self._sign_in = sign_in
        self._store = store
        self._real_time = real_time

    async def authenticate(self, request: Request) -> Principal:
        """Raises Stranger, or Unavailable where an external issuer could never be reached."""
        try:
            claims = await self._sign_in.verify(_bearer_token(request), self._real_time())
            return principal_for_claims(claims, self._store)
        except (InvalidToken, Unauthenticated) as error:
            raise AuthenticationRequired(str(error), self._challenge(request)) from None

    def _challenge(self, request: Request) -> str:
        external = self._sign_in.external
        where = external.url if external is not None else f"{request.url.scheme}://{request.url.netloc}/adfs"
        return f'Bearer authorization_uri="{where}", error="invalid_token"'


def principal_for_claims(claims: Claims, store: Store) -> Principal:
    """Whoever was proven to be so, as of now. Unauthenticated where the one whom the proof was given to is gone."""
    name = _display_name(claims, store)
    grants = tuple(grant for one in claims.ids for grant in store.grants(to=one))
    return Principal(id=claims.primary_id, name=name, grants=grants)


def _display_name(claims: Claims, store: Store) -> str:
    """How the history calls them."""
    if claims.vm_id:
        return _vm_display_name(claims, store)
    if not claims.primary_id.startswith(_CLIENT_PREFIX):
        return f"{claims.name} (oidc)"  # what they call themselves never makes them one of ours
    return _client_display_name(claims, store)


def _client_display_name(claims: Claims, store: Store) -> str:
    """A proof goes with the secret that it was given for, and so with its client: another may have that id now."""
    client_id = claims.primary_id.removeprefix(_CLIENT_PREFIX)
    client = store.client(client_id)
    if client is None:
        raise Unauthenticated(f"client {client_id!r} was removed: sign in as another")
    if secret_fingerprint(client.secret_hash) != claims.secret_fingerprint:
        raise Unauthenticated(f"client {client_id!r} was given another secret: sign in with that one")
    return f"client {client_id}"


def _vm_display_name(claims: Claims, store: Store) -> str:
    vm = store.vm(claims.vm_key)
    if vm is None or vm.removed_at is not None or vm.vm_id.casefold() != claims.vm_id.casefold():
        raise Unauthenticated(f"VM {claims.name!r}, which the token was given to, is gone: get one in another VM")
    return f"VM {vm.name}"


def _bearer_token(request: Request) -> str:
    given = request.headers.get("authorization", "").strip()
    scheme, _, token = given.partition(" ")
    if not given:
        raise Unauthenticated("the call has no Authorization header: sign in, and send 'Authorization: Bearer TOKEN'")
    if scheme.lower() != _BEARER or not token.strip():
        raise Unauthenticated("the Authorization header has no bearer token: send 'Authorization: Bearer TOKEN'")
    return token.strip()


log = logging.getLogger(__name__)
_UNKNOWN_CLIENT_HASH = hash_secret(
    new_secret()
)  # compared with where there is no client, so that both take the same time


def verify_client_secret(client_id: str, secret: str, store: Store) -> RegisteredClient:
    """The client with this id and secret; that one is unknown or the other wrong cannot be told apart."""
    client = store.client(client_id.casefold())
    known = client.secret_hash if client is not None else _UNKNOWN_CLIENT_HASH
    if not secret_matches(secret, known) or client is None:
        # An id that nobody has may be a secret that was typed in its place.
        log.info("a sign-in as %s was refused", quote_excerpt(client.id) if client is not None else "nobody we know")
        raise Unauthenticated(
            f"client {quote_excerpt(client_id)} does not exist, or this is not its secret", Remedy.LIST_CLIENTS
        )
    return client


Authenticate = Callable[[Request], Awaitable[Principal]]  # who is calling; Unauthenticated if that cannot be told
