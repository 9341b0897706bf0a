"""Decides whom a one-time sign-in link signs in: the caller, or the administrator."""

from __future__ import annotations

from forewarn.auth.claims import Claims
from forewarn.auth.sessions import SignInIdentity
from forewarn.auth.token_service import TokenService, claims_of_client
from forewarn.core.access import ADMIN_CLIENT_ID, Principal, Right, client_principal, owner_principal
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import Refused, Unauthenticated
from forewarn.store.interface import Store
from forewarn.web.authentication import principal_for_claims

_OWNER_ID = owner_principal("").id
_CLIENT_ID_PREFIX = client_principal("")


def sign_in_link_identity(caller: Principal, sign_in: TokenService, store: Store) -> SignInIdentity:
    """Return whom a sign-in link that `caller` creates signs in; creates no link.

    A client signs in itself. For the owner of the service it is the client `admin`, or the owner (`is_owner`) if
    callers sign in at an external issuer, or if `admin` is not an administrator.
    """
    if caller.id == _OWNER_ID:
        return _administrator_identity(sign_in, store) or _owner_identity(caller)
    if not caller.id.startswith(_CLIENT_ID_PREFIX):
        raise Refused(f"sign-in links are for clients and for the owner of the service, not for {caller.name}: sign in")
    return _client_identity(caller.id.removeprefix(_CLIENT_ID_PREFIX), store)


def _administrator_identity(sign_in: TokenService, store: Store) -> SignInIdentity | None:
    if sign_in.external is not None or store.client(ADMIN_CLIENT_ID) is None:
        return None
    identity = _client_identity(ADMIN_CLIENT_ID, store)
    is_administrator = principal_for_claims(identity.claims, store).may(Right.ADMINISTER, ROOT_RESOURCE)
    return identity if is_administrator else None


def _client_identity(client_id: str, store: Store) -> SignInIdentity:
    client = store.client(client_id)
    if client is None:
        raise Unauthenticated(f"client {client_id!r} was removed: sign in as another")
    return SignInIdentity(claims=claims_of_client(client))


def _owner_identity(owner: Principal) -> SignInIdentity:
    return SignInIdentity(claims=Claims(ids=(_OWNER_ID,), name=owner.name, tenant="", expires_at=0), is_owner=True)
