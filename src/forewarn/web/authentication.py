"""Who is calling over TLS: the bearer of a token, with what is granted to them at this very moment."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from forewarn.access.claims import BadToken, Claims
from forewarn.access.secret import mark_of
from forewarn.access.sign_in import SignIn
from forewarn.clock import read_real_time
from forewarn.core.access import Principal, client_principal
from forewarn.errors import Unauthenticated
from forewarn.store.seam import Store

_CLIENT = client_principal("")
_SCHEME = "bearer"


class Stranger(Unauthenticated):
    """Nobody whom we know. The challenge is the header that tells a program where to sign in."""

    def __init__(self, sentence: str, challenge: str) -> None:
        super().__init__(sentence)
        self.challenge = challenge


class Door:
    """Lets in whoever a token speaks for; nothing is remembered, so that what is revoked counts at once."""

    def __init__(self, *, sign_in: SignIn, store: Store, real_time: Callable[[], float] = read_real_time) -> None:
        self._sign_in = sign_in
        self._store = store
        self._real_time = real_time

    async def admit(self, request: Request) -> Principal:
        """Raises Stranger, or Unavailable where an external issuer could never be reached."""
        try:
            claims = await self._sign_in.verify(_token(request), self._real_time())
            return principal_of(claims, self._store)
        except (BadToken, Unauthenticated) as error:
            raise Stranger(str(error), self._challenge(request)) from None

    def _challenge(self, request: Request) -> str:
        external = self._sign_in.external
        where = external.url if external is not None else f"{request.url.scheme}://{request.url.netloc}/adfs"
        return f'Bearer authorization_uri="{where}", error="invalid_token"'


def principal_of(claims: Claims, store: Store) -> Principal:
    """Whoever was proven to be so, as of now. Unauthenticated where the one whom the proof was given to is gone."""
    name = _name(claims, store)
    grants = tuple(grant for one in claims.ids for grant in store.grants(to=one))
    return Principal(id=claims.who, name=name, grants=grants)


def _name(claims: Claims, store: Store) -> str:
    """How the history calls them."""
    if claims.vm_id:
        return _name_of_vm(claims, store)
    if not claims.who.startswith(_CLIENT):
        return f"{claims.name} (oidc)"  # what they call themselves never makes them one of ours
    return _name_of_client(claims, store)


def _name_of_client(claims: Claims, store: Store) -> str:
    """A proof goes with the secret that it was given for, and so with its client: another may have that id now."""
    client_id = claims.who.removeprefix(_CLIENT)
    client = store.client(client_id)
    if client is None:
        raise Unauthenticated(f"client {client_id!r} was removed: sign in as another")
    if mark_of(client.secret_hash) != claims.secret_mark:
        raise Unauthenticated(f"client {client_id!r} was given another secret: sign in with that one")
    return f"client {client_id}"


def _name_of_vm(claims: Claims, store: Store) -> str:
    vm = store.vm(claims.vm_key)
    if vm is None or vm.removed_at is not None or vm.vm_id.casefold() != claims.vm_id.casefold():
        raise Unauthenticated(f"VM {claims.name!r}, which the token was given to, is gone: get one in another VM")
    return f"VM {vm.name}"


def _token(request: Request) -> str:
    given = request.headers.get("authorization", "").strip()
    scheme, _, token = given.partition(" ")
    if not given:
        raise Unauthenticated("the call has no Authorization header: sign in, and send 'Authorization: Bearer TOKEN'")
    if scheme.lower() != _SCHEME or not token.strip():
        raise Unauthenticated("the Authorization header has no bearer token: send 'Authorization: Bearer TOKEN'")
    return token.strip()
