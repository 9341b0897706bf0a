"""Links that sign in once: for whom whoever asks may have one made."""

from __future__ import annotations

from forewarn.access.claims import Claims
from forewarn.access.link import Pass
from forewarn.access.sign_in import SignIn, claims_of
from forewarn.console.door import principal_of
from forewarn.core.access import ADMIN, Principal, Right, client_principal, owner
from forewarn.core.resource import EVERYTHING
from forewarn.errors import Refused, Unauthenticated
from forewarn.store.seam import Store

_OWNER = owner("").id
_CLIENT = client_principal("")


def pass_for(asker: Principal, sign_in: SignIn, store: Store) -> Pass:
    """Themselves; for the owner of the service, its administrator, who is known by name wherever there is one."""
    if asker.id == _OWNER:
        return _administrator(sign_in, store) or _owner(asker)
    if not asker.id.startswith(_CLIENT):
        raise Refused(f"a link is made for clients and for the owner of the service, not for {asker.name}: sign in")
    return _client(asker.id.removeprefix(_CLIENT), store)


def _administrator(sign_in: SignIn, store: Store) -> Pass | None:
    if sign_in.external is not None or store.client(ADMIN) is None:
        return None
    found = _client(ADMIN, store)
    may_all = principal_of(found.claims, store).may(Right.ADMINISTER, EVERYTHING)
    return found if may_all else None


def _client(client_id: str, store: Store) -> Pass:
    client = store.client(client_id)
    if client is None:
        raise Unauthenticated(f"client {client_id!r} was removed: sign in as another")
    return Pass(claims=claims_of(client))


def _owner(asker: Principal) -> Pass:
    return Pass(claims=Claims(ids=(_OWNER,), name=asker.name, tenant="", expires_at=0), is_owner=True)
