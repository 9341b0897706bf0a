"""Whose tokens count: where an issuer outside is named, people and apps come from there, VMs still from us."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from forewarn.access.claims import BadToken, Claims, Reason
from forewarn.access.issuer import ExternalIssuer
from forewarn.access.sign_in import SignIn
from forewarn.access.signing import SigningKey
from forewarn.access.token import Issuer, Subject
from forewarn.testing.oidc import OidcIssuer

NOW = 1_790_000_000.0
ARM = "https://management.azure.com"
CLIENT = Subject(client_id="deploy", object_id="6f0c", tenant="72f9")
VM = Subject(client_id="a1", object_id="b2", tenant="72f9", vm_key="rg/web", vm_id="c3")
ANN = {"sub": "ann", "aud": "api://forewarn", "exp": NOW + 3600}
OURS = Issuer("https://localhost:8443/adfs", SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=2048)))


@pytest.fixture
def outside() -> Iterator[OidcIssuer]:
    with OidcIssuer() as outside:
        yield outside


def verified(outside: OidcIssuer, token: str) -> Claims:
    external = ExternalIssuer(outside.url, ["api://forewarn"])
    return asyncio.run(SignIn(issuer=OURS, tenant_id="72f9", external=external).verify(token, NOW))


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
def test_a_person_comes_with_a_token_from_outside_however_it_is_signed(outside: OidcIssuer, algorithm: str) -> None:
    if algorithm == "ES256":
        outside.rotate("first", ec.generate_private_key(ec.SECP256R1()))
    assert verified(outside, outside.token(ANN, algorithm=algorithm)).who == "oidc:ann"


def test_a_vm_comes_with_our_own_token_and_nobody_outside_is_asked(outside: OidcIssuer) -> None:
    assert verified(outside, OURS.issue(VM, ARM, NOW)).who == "vm:c3"
    assert outside.asked == []


def test_a_client_of_ours_is_sent_to_the_issuer_outside(outside: OidcIssuer) -> None:
    with pytest.raises(BadToken, match="clients sign in at") as refused:
        verified(outside, OURS.issue(CLIENT, ARM, NOW))
    assert refused.value.reason is Reason.WRONG_ISSUER


def test_without_an_issuer_outside_its_tokens_are_of_an_unknown_key(outside: OidcIssuer) -> None:
    alone = SignIn(issuer=OURS, tenant_id="72f9")
    assert asyncio.run(alone.verify(OURS.issue(CLIENT, ARM, NOW), NOW)).who == "client:deploy"
    with pytest.raises(BadToken) as refused:
        asyncio.run(alone.verify(outside.token(ANN), NOW))
    assert refused.value.reason is Reason.UNKNOWN_KEY
