"""Whose tokens count: where an issuer outside is named, people and apps come from there, VMs still from us."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from forewarn.auth.claims import Claims, InvalidToken, TokenErrorReason
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import SigningKey, TokenIssuer, TokenSubject
from tests.support.oidc_issuer import OidcIssuer

NOW = 1_790_000_000.0
ARM = "https://management.azure.com"
CLIENT = TokenSubject(client_id="deploy", object_id="6f0c", tenant="72f9")
VM = TokenSubject(client_id="a1", object_id="b2", tenant="72f9", vm_key="rg/web", vm_id="c3")
ANN = {"sub": "ann", "aud": "api://forewarn", "exp": NOW + 3600}
OURS = TokenIssuer(
    "https://localhost:8443/adfs", SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=2048))
)


@pytest.fixture
def outside() -> Iterator[OidcIssuer]:
    with OidcIssuer() as outside:
        yield outside


def verified(outside: OidcIssuer, token: str) -> Claims:
    external = ExternalIssuer(outside.url, ["api://forewarn"])
    return asyncio.run(TokenService(issuer=OURS, tenant_id="72f9", external=external).verify(token, NOW))


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
def test_people_sign_in_with_external_tokens_of_every_algorithm(outside: OidcIssuer, algorithm: str) -> None:
    if algorithm == "ES256":
        outside.rotate("first", ec.generate_private_key(ec.SECP256R1()))
    assert verified(outside, outside.token(ANN, algorithm=algorithm)).primary_id == "oidc:ann"


def test_the_token_of_a_vm_is_verified_without_the_external_issuer(outside: OidcIssuer) -> None:
    assert verified(outside, OURS.issue_text(VM, ARM, NOW)).primary_id == "vm:c3"
    assert outside.requested_paths == []


def test_a_token_of_our_own_client_is_rejected_if_there_is_an_external_issuer(outside: OidcIssuer) -> None:
    with pytest.raises(InvalidToken, match="clients sign in at") as refused:
        verified(outside, OURS.issue_text(CLIENT, ARM, NOW))
    assert refused.value.reason is TokenErrorReason.WRONG_ISSUER


def test_external_tokens_have_an_unknown_key_without_an_external_issuer(outside: OidcIssuer) -> None:
    alone = TokenService(issuer=OURS, tenant_id="72f9")
    assert asyncio.run(alone.verify(OURS.issue_text(CLIENT, ARM, NOW), NOW)).primary_id == "client:deploy"
    with pytest.raises(InvalidToken) as refused:
        asyncio.run(alone.verify(outside.token(ANN), NOW))
    assert refused.value.reason is TokenErrorReason.UNKNOWN_KEY
