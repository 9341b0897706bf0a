"""Which tokens a service accepts: with an external issuer, people and apps use its tokens, VMs ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from forewarn.auth.claims import Claims, InvalidToken, TokenErrorReason
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import SigningKey, TokenIssuer, TokenSubject
from tests.support.oidc_issuer import LOOPBACK_CLIENT, OidcIssuer

NOW = 1_790_000_000.0
ARM = "https://management.azure.com"
CLIENT = TokenSubject(client_id="deploy", object_id="6f0c", tenant="72f9")
VM = TokenSubject(client_id="a1", object_id="b2", tenant="72f9", vm_key="rg/web", vm_id="c3")
ANN = {"sub": "ann", "aud": "api://forewarn", "exp": NOW + 3600}
OURS = TokenIssuer(
    "https://localhost:8443/adfs", SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=2048))
)


@pytest.fixture
def external_issuer() -> Iterator[OidcIssuer]:
    with OidcIssuer() as external_issuer:
        yield external_issuer


def verified(external_issuer: OidcIssuer, token: str) -> Claims:
    external = ExternalIssuer(external_issuer.url, ["api://forewarn"], client=LOOPBACK_CLIENT)
    return asyncio.run(TokenService(issuer=OURS, tenant_id="72f9", external=external).verify(token, NOW))


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
def test_people_sign_in_with_external_tokens_of_every_algorithm(external_issuer: OidcIssuer, algorithm: str) -> None:
    if algorithm == "ES256":
        external_issuer.rotate("first", ec.generate_private_key(ec.SECP256R1()))
    assert verified(external_issuer, external_issuer.token(ANN, algorithm=algorithm)).primary_id == "oidc:ann"


def test_the_token_of_a_vm_is_verified_without_the_external_issuer(external_issuer: OidcIssuer) -> None:
    assert verified(external_issuer, OURS.issue_token(VM, ARM, NOW).token).primary_id == "vm:c3"
    assert external_issuer.requested_paths == []


def test_a_token_of_our_own_client_is_rejected_if_there_is_an_external_issuer(external_issuer: OidcIssuer) -> None:
    with pytest.raises(InvalidToken, match="clients sign in at") as refused:
        verified(external_issuer, OURS.issue_token(CLIENT, ARM, NOW).token)
    assert refused.value.reason is TokenErrorReason.WRONG_ISSUER


def test_external_tokens_have_an_unknown_key_without_an_external_issuer(external_issuer: OidcIssuer) -> None:
    alone = TokenService(issuer=OURS, tenant_id="72f9")
    assert asyncio.run(alone.verify(OURS.issue_token(CLIENT, ARM, NOW).token, NOW)).primary_id == "client:deploy"
    with pytest.raises(InvalidToken) as refused:
        asyncio.run(alone.verify(external_issuer.token(ANN), NOW))
    assert refused.value.reason is TokenErrorReason.UNKNOWN_KEY
