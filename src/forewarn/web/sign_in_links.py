"""Creates sign-in links: decides for whom the caller may create one."""

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


def sign_in_link_subject(asker: Principal, sign_in: TokenService, store: Store) -> SignInIdentity:
    """Themselves; for the owner of the service, its administrator, who is known by name wherever there is one."""
    if asker.id == _OWNER_ID:
        return _administrator_subject(sign_in, store) or _owner_subject(asker)
    if not asker.id.startswith(_CLIENT_ID_PREFIX):
        raise Refused(f"a link is made for clients and for the owner of the service, not for {asker.name}: sign in")
    return _client_subject(asker.id.removeprefix(_CLIENT_ID_PREFIX), store)


def _administrator_subject(sign_in: TokenService, store: Store) -> SignInIdentity | None:
    if sign_in.external is not None or store.client(ADMIN_CLIENT_ID) is None:
        return None
    found = _client_subject(ADMIN_CLIENT_ID, store)
    may_all = principal_for_claims(found.claims, store).may(Right.ADMINISTER, ROOT_RESOURCE)
    return found if may_all else None


def _client_subject(client_id: str, store: Store) -> SignInIdentity:
    client = store.client(client_id)
    if client is None:
        raise Unauthenticated(f"client {client_id!r} was removed: sign in as another")
    return SignInIdentity(claims=claims_of_client(client))


def _owner_subject(asker: Principal) -> SignInIdentity:
    return SignInIdentity(claims=Claims(ids=(_OWNER_ID,), name=asker.name, tenant="", expires_at=0), is_owner=True)
