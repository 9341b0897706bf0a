"""Tokens of our own: what clients and VMs get for their secret or their place in the network, and show afterwards.

Shaped as the vendor's (version 1.0), so that the vendor's clients accept them; proven by our signature alone.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from forewarn.access import jws
from forewarn.access.claims import BadToken, Bounds, Claims, Reason, all_spelled, must_hold, spelled
from forewarn.access.signing import ALGORITHM, SigningKey
from forewarn.core.access import client_principal, vm_principal

MANAGEMENT = ("https://management.azure.com", "https://management.core.windows.net")  # as the vendor's clients ask

_REMEMBERED = 1024  # tokens; signing one takes about a millisecond


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a token is for: a client, or a VM's managed identity when `vm_id` is given."""

    client_id: str
    object_id: str
    tenant: str
    name: str = ""
    secret_mark: str = ""  # of a client: which of its secrets it has shown
    vm_key: str = ""
    vm_id: str = ""
    resource_id: str = ""  # of a VM, as ARM spells it


class Issued(msgspec.Struct, frozen=True, kw_only=True):
    """A token, and what its answer says about it."""

    token: str
    issued_at: float
    expires_at: float

    def __repr__(self) -> str:
        return f"Issued(expires_at={self.expires_at})"  # the token is a secret

    def is_fresh(self, now: float) -> bool:
        """More than half of its life is left."""
        return self.issued_at <= now < (self.issued_at + self.expires_at) / 2


class _Payload(Bounds, frozen=True, kw_only=True, omit_defaults=True):
    sub: str
    oid: str
    appid: str
    tid: str
    iat: int
    uti: str
    jti: str
    idtyp: str
    ver: str
    app_displayname: str = ""
    xms_mirid: str = ""
    forewarn_secret: str = ""
    forewarn_vm_key: str = ""
    forewarn_vm_id: str = ""


class Issuer:
    """Issues tokens at `url` and verifies them. It accepts those for the vendor's management and for `audiences`."""

    def __init__(self, url: str, key: SigningKey, lifetime_s: int = 3600, audiences: Iterable[str] = ()) -> None:
        self.url = url
        self.lifetime_s = lifetime_s
        self._key = key
        self._audiences = all_spelled((*MANAGEMENT, *audiences))
        self._remembered: OrderedDict[tuple[Subject, str], Issued] = OrderedDict()

    def issue(self, subject: Subject, audience: str, now: float) -> str:
        return self.issued(subject, audience, now).token

    def issued(self, subject: Subject, audience: str, now: float) -> Issued:
        """A token for this audience, ours or not: the same as before while more than half of its life is left."""
        asked = (subject, audience)
        known = self._remembered.get(asked)
        if known is None or not known.is_fresh(now):
            known = self._remembered[asked] = self._sign(subject, audience, int(now))
        self._remembered.move_to_end(asked)
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return known

    def accepts(self, audience: str) -> bool:
        """Whether a token for this audience is worth something here."""
        return spelled(audience) in self._audiences

    def verify(self, token: str, now: float) -> Claims:
        header = jws.header_of(token)
        if header.kid != self._key.kid:
            raise BadToken(Reason.UNKNOWN_KEY, "the token names a key that is not this service's: sign in again")
        jws.must_be_signed_with((ALGORITHM,), header)
        payload = jws.payload_of(token, self._key.public, ALGORITHM, _Payload)
        must_hold(payload, issuer=self.url, audiences=self._audiences, now=now)
        return _claims(payload)

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        return {"keys": [self._key.jwk]}

    def _sign(self, subject: Subject, audience: str, now: int) -> Issued:
        identifier = secrets.token_urlsafe(16)
        payload = _Payload(
            iss=self.url, aud=audience, iat=now, nbf=now, exp=now + self.lifetime_s,
            sub=subject.object_id, oid=subject.object_id, appid=subject.client_id, tid=subject.tenant,
            uti=identifier, jti=identifier, idtyp="app", ver="1.0", app_displayname=subject.name,
            xms_mirid=subject.resource_id, forewarn_secret=subject.secret_mark,
            forewarn_vm_key=subject.vm_key, forewarn_vm_id=subject.vm_id,
        )  # fmt: skip
        token = jws.signed(msgspec.json.encode(payload), self._key.private, algorithm=ALGORITHM, kid=self._key.kid)
        return Issued(token=token, issued_at=now, expires_at=now + self.lifetime_s)


def _claims(payload: _Payload) -> Claims:
    vm_id = payload.forewarn_vm_id
    return Claims(
        ids=(vm_principal(vm_id) if vm_id else client_principal(payload.appid),),
        name=payload.app_displayname or payload.appid,
        tenant=payload.tid,
        expires_at=payload.exp,
        secret_mark=payload.forewarn_secret,
        vm_key=payload.forewarn_vm_key,
        vm_id=vm_id,
    )
