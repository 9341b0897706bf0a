"""Tokens of an external issuer: accepted signatures, and the identity that they give."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from forewarn.auth.claims import Claims, InvalidToken, TokenErrorReason
from forewarn.auth.external_issuer import ExternalIssuer
from tests.support.oidc_issuer import LOOPBACK_CLIENT, OidcIssuer

NOW = 1_790_000_000.0
AUDIENCE = "api://forewarn"
WHEN: dict[str, Any] = {"aud": AUDIENCE, "exp": NOW + 3600, "nbf": NOW}
ANN: dict[str, Any] = {"sub": "ann", **WHEN}
CURVES: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


@pytest.fixture(scope="module")
def issuer() -> Iterator[OidcIssuer]:
    with OidcIssuer() as issuer:
        yield issuer


def verified(issuer: OidcIssuer, token: str) -> Claims:
    return asyncio.run(ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT).verify(token, NOW))


def reason(issuer: OidcIssuer, token: str) -> TokenErrorReason:
    with pytest.raises(InvalidToken) as refused:
        verified(issuer, token)
    assert token not in str(refused.value)
    return refused.value.reason


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256"])
def test_rsa_signatures_are_accepted(issuer: OidcIssuer, algorithm: str) -> None:
    assert verified(issuer, issuer.token(ANN, algorithm=algorithm)).primary_id == "oidc:ann"


@pytest.mark.parametrize("algorithm", ["ES256", "ES384"])
def test_elliptic_curve_signatures_are_accepted(issuer: OidcIssuer, algorithm: str) -> None:
    issuer.add(algorithm, ec.generate_private_key(CURVES[algorithm]))
    assert verified(issuer, issuer.token(ANN, algorithm, algorithm)).primary_id == "oidc:ann"


def test_other_algorithms_are_rejected(issuer: OidcIssuer) -> None:
    issuer.add("ES512", ec.generate_private_key(CURVES["ES512"]))
    assert reason(issuer, issuer.token(ANN, "ES512", "ES512")) is TokenErrorReason.BAD_SIGNATURE
    assert reason(issuer, issuer.token(ANN, algorithm="PS512")) is TokenErrorReason.BAD_SIGNATURE


def test_an_unsigned_external_token_is_rejected(issuer: OidcIssuer) -> None:
    payload = {"iss": issuer.url, **ANN}
    assert reason(issuer, jwt.encode(payload, "", "none", {"kid": "first"})) is TokenErrorReason.BAD_SIGNATURE


def test_a_published_shared_secret_is_never_accepted(issuer: OidcIssuer) -> None:
    secret = b"a secret that everybody can read"
    published = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    issuer.published.append({"kty": "oct", "k": published, "kid": "shared", "alg": "HS256"})
    token = jwt.encode({"iss": issuer.url, **ANN}, secret, "HS256", {"kid": "shared"})
    assert reason(issuer, token) is TokenErrorReason.BAD_SIGNATURE


def test_a_foreign_key_with_a_known_key_id_is_rejected(issuer: OidcIssuer) -> None:
    foreign_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    token = jwt.encode({"iss": issuer.url, **ANN}, foreign_key, "RS256", {"kid": "first"})
    assert reason(issuer, token) is TokenErrorReason.BAD_SIGNATURE


def test_a_token_without_a_key_id_is_rejected(issuer: OidcIssuer) -> None:
    token = jwt.encode({"iss": issuer.url, **ANN}, issuer.keys["first"], "RS256")
    assert reason(issuer, token) is TokenErrorReason.UNKNOWN_KEY


def test_a_key_is_used_only_for_the_algorithm_it_names(issuer: OidcIssuer) -> None:
    issuer.add("narrow", alg="RS512")
    assert verified(issuer, issuer.token(ANN, "narrow", "RS512"))
    assert reason(issuer, issuer.token(ANN, "narrow", "RS256")) is TokenErrorReason.BAD_SIGNATURE


@pytest.mark.parametrize(
    ("bits", "more"),
    [(2048, {"use": "enc"}), (2048, {"alg": "HS256"}), (1024, {})],
    ids=["for encryption", "for shared secrets", "too weak"],
)
@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits")  # the issuer that signs with it is warned
def test_unsuitable_keys_are_ignored(issuer: OidcIssuer, bits: int, more: dict[str, Any]) -> None:
    issuer.add("unfit", rsa.generate_private_key(public_exponent=65537, key_size=bits), **more)
    assert reason(issuer, issuer.token(ANN, "unfit")) is TokenErrorReason.UNKNOWN_KEY
    assert verified(issuer, issuer.token(ANN))


PERSON = {"oid": "0a", "sub": "pairwise", "tid": "72f9", "appid": "cli", "scp": "user_impersonation"}
APP = {"oid": "0b", "sub": "0b", "tid": "72f9", "appid": "deployer"}
WHO = {
    "a person of Azure": (PERSON | {"upn": "ann@x"}, ("oidc:0a",), "ann@x", "72f9"),
    "an app of Azure": (APP, ("oidc:deployer", "oidc:0b"), "deployer", "72f9"),
    "an app that says so": (APP | {"sub": "x", "idtyp": "app"}, ("oidc:deployer", "oidc:0b"), "deployer", "72f9"),
    "a person who says so": (APP | {"idtyp": "user"}, ("oidc:0b",), "deployer", "72f9"),
    "a person, by scopes": (APP | {"scp": "read"}, ("oidc:0b",), "deployer", "72f9"),
    "a person, by a name": (APP | {"preferred_username": "bob"}, ("oidc:0b",), "bob", "72f9"),
    "no tenant": (APP | {"tid": None}, ("oidc:0b",), "deployer", ""),
    "an app of another issuer": ({"sub": "ci", "client_id": "ci"}, ("oidc:ci",), "ci", ""),
    "a person of another issuer": ({"sub": "u1", "azp": "web", "email": "e@x"}, ("oidc:u1",), "e@x", ""),
    "names in order": ({"sub": "u", "email": "c", "upn": "b", "preferred_username": "a"}, ("oidc:u",), "a", ""),
    "no name": ({"sub": "u1"}, ("oidc:u1",), "u1", ""),
    "an id with capitals": ({"sub": "Bob"}, ("oidc:Bob",), "Bob", ""),
    "a name that moves the cursor": ({"sub": "u", "upn": "a\x1b[2J\nb"}, ("oidc:u",), "a[2Jb", ""),
}


@pytest.mark.parametrize(("payload", "ids", "name", "tenant"), WHO.values(), ids=WHO)
def test_an_external_token_gives_the_ids_and_name_of_its_owner(
    issuer: OidcIssuer, payload: dict[str, Any], ids: tuple[str, ...], name: str, tenant: str
) -> None:
    claims = verified(issuer, issuer.token(WHEN | payload))
    assert claims == Claims(ids=ids, name=name, tenant=tenant, expires_at=NOW + 3600)


def test_an_external_token_cannot_claim_to_be_a_vm_or_a_client_of_ours(issuer: OidcIssuer) -> None:
    payload = ANN | {
        "forewarn_vm_id": "c3",
        "forewarn_vm_key": "rg/web",
        "xms_mirid": "/subscriptions/s",
        "sub": "vm:c3",
    }
    claims = verified(issuer, issuer.token(payload))
    assert (claims.primary_id, claims.vm_id, claims.vm_key) == ("oidc:vm:c3", "", "")
