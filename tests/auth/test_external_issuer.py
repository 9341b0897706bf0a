"""Keys of an external issuer are discovered, cached, refreshed, and survive its outages."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from forewarn.auth.certificates import ServiceCertificates
from forewarn.auth.claims import Claims, InvalidToken, TokenErrorReason
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.base.http_client import HttpClient, LocalTargets
from forewarn.errors import Rejected, Unavailable
from tests.support.oidc_issuer import DISCOVERY_PATH, KEYS_PATH, LOOPBACK_CLIENT, OidcIssuer

NOW = 1_790_000_000.0
AUDIENCE = "api://forewarn"
ANN: dict[str, Any] = {"sub": "ann", "aud": AUDIENCE, "exp": NOW + 1e6, "nbf": NOW}


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    with OidcIssuer() as issuer:
        yield issuer


def verified(external: ExternalIssuer, token: str, now: float = NOW) -> Claims:
    return asyncio.run(external.verify(token, now))


def refusal(external: ExternalIssuer, token: str, now: float = NOW) -> InvalidToken:
    with pytest.raises(InvalidToken) as error:
        verified(external, token, now)
    return error.value


def unavailable_message(external: ExternalIssuer, token: str, now: float = NOW) -> str:
    with pytest.raises(Unavailable) as error:
        verified(external, token, now)
    return str(error.value)


def test_the_keys_are_discovered_and_kept_for_an_hour(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)
    for later in (0, 1, 3599):
        assert verified(external, issuer.token(ANN), NOW + later).primary_id == "oidc:ann"
    assert issuer.requested_paths == [DISCOVERY_PATH, KEYS_PATH]
    verified(external, issuer.token(ANN), NOW + 3600)
    assert issuer.requested_paths == [DISCOVERY_PATH, KEYS_PATH] * 2


def test_the_url_of_an_issuer_may_end_with_a_slash(issuer: OidcIssuer) -> None:
    assert verified(ExternalIssuer(f"{issuer.url}/", [AUDIENCE], client=LOOPBACK_CLIENT), issuer.token(ANN))


def test_a_configured_jwks_url_needs_no_discovery(issuer: OidcIssuer) -> None:
    verified(ExternalIssuer(issuer.url, [AUDIENCE], issuer.url + KEYS_PATH, client=LOOPBACK_CLIENT), issuer.token(ANN))
    assert issuer.requested_paths == [KEYS_PATH]


def test_concurrent_verifications_share_one_fetch(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)

    async def verify_concurrently() -> list[Claims]:
        return await asyncio.gather(*(external.verify(issuer.token(ANN), NOW) for _ in range(20)))

    assert len(asyncio.run(verify_concurrently())) == 20
    assert issuer.requested_paths == [DISCOVERY_PATH, KEYS_PATH]


def test_a_slow_fetch_is_not_repeated_meanwhile(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)

    async def verify_concurrently() -> list[Claims]:
        return await asyncio.gather(*(external.verify(issuer.token(ANN), NOW + later) for later in (0, 40, 80)))

    assert len(asyncio.run(verify_concurrently())) == 3
    assert issuer.requested_paths == [DISCOVERY_PATH, KEYS_PATH]


def test_a_cancelled_verification_does_not_cancel_the_fetch_for_others(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)

    async def verify_concurrently() -> Claims:
        first = asyncio.create_task(external.verify(issuer.token(ANN), NOW))
        second = asyncio.create_task(external.verify(issuer.token(ANN), NOW))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(verify_concurrently()).primary_id == "oidc:ann"


def test_fetching_keys_does_not_block_the_event_loop(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)

    async def verify_concurrently() -> int:
        waiting = asyncio.create_task(external.verify(issuer.token(ANN), NOW))
        turns = 0
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0)
        await waiting
        return turns

    assert asyncio.run(verify_concurrently()) > 5


def test_a_rotated_key_is_found_at_once(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)
    verified(external, issuer.token(ANN))
    issuer.rotate("second")
    assert verified(external, issuer.token(ANN, "second"), NOW + 40).primary_id == "oidc:ann"
    assert refusal(external, issuer.token(ANN, "first"), NOW + 80).reason is TokenErrorReason.UNKNOWN_KEY


def test_tokens_with_random_key_ids_cause_few_fetches(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)
    verified(external, issuer.token(ANN))
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for number in range(200):
        issuer.keys[f"random {number}"] = key
        assert (
            refusal(external, issuer.token(ANN, f"random {number}"), NOW + number / 2).reason
            is TokenErrorReason.UNKNOWN_KEY
        )
    assert issuer.requested_paths.count(KEYS_PATH) == 1 + 3  # in 100 seconds


def test_tokens_with_known_keys_are_accepted_during_an_outage_of_the_issuer(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)
    verified(external, issuer.token(ANN))
    issuer.is_down = True
    for later in (10, 3600, 3610, 90_000):
        assert verified(external, issuer.token(ANN), NOW + later).primary_id == "oidc:ann"
    assert issuer.requested_paths == [DISCOVERY_PATH, KEYS_PATH, DISCOVERY_PATH, DISCOVERY_PATH]  # not for every token
    issuer.is_down = False
    issuer.rotate("second")
    assert verified(external, issuer.token(ANN, "second"), NOW + 90_030)


def test_known_keys_are_kept_if_the_issuer_publishes_none(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)
    verified(external, issuer.token(ANN))
    issuer.published = []
    assert verified(external, issuer.token(ANN), NOW + 3600).primary_id == "oidc:ann"


def test_an_issuer_is_unavailable_until_its_first_answer(issuer: OidcIssuer) -> None:
    external = ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT)
    issuer.is_down = True
    for later in (0, 1, 4):
        sentence = unavailable_message(external, issuer.token(ANN), NOW + later)
        assert sentence.startswith(
            f"tokens of issuer {issuer.url!r} cannot be verified now: '{issuer.url}{DISCOVERY_PATH}' does"
        )
        assert sentence.endswith("; try again later")
    assert issuer.requested_paths == [DISCOVERY_PATH]
    issuer.is_down = False
    assert verified(external, issuer.token(ANN), NOW + 5).primary_id == "oidc:ann"


def test_an_issuer_with_a_closed_port_is_unavailable(issuer: OidcIssuer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        external = ExternalIssuer(f"http://127.0.0.1:{unused.getsockname()[1]}", [AUDIENCE], client=LOOPBACK_CLIENT)
        assert "refused" in unavailable_message(external, issuer.token(ANN))


@pytest.mark.parametrize(
    ("path", "answer", "sentence"),
    [
        (DISCOVERY_PATH, (404, b"{}"), "answered 404"),
        (DISCOVERY_PATH, (302, b"http://127.0.0.1:9/"), "answered 302"),
        (DISCOVERY_PATH, (200, b"<html>"), "its openid-configuration cannot be read"),
        (DISCOVERY_PATH, (200, b'{"issuer": "x"}'), "its openid-configuration cannot be read"),
        (DISCOVERY_PATH, (200, b'{"issuer": "https://evil", "jwks_uri": "https://evil"}'), "belongs to 'https://evil'"),
        (KEYS_PATH, (500, b""), "answered 500"),
        (KEYS_PATH, (200, b"{}"), "JWKS document is not valid"),
        (KEYS_PATH, (200, b'{"keys": []}'), "has no usable key"),
        (KEYS_PATH, (200, b'{"keys": [{"kty": "RSA", "kid": "first"}, {}]}'), "has no usable key"),
        (KEYS_PATH, (200, b" " * 1_100_000), "answered with more than 1048576 bytes"),
    ],
)  # fmt: skip
def test_an_issuer_with_invalid_answers_is_unavailable(
    issuer: OidcIssuer, path: str, answer: tuple[int, bytes], sentence: str
) -> None:
    issuer.answers[path] = answer
    assert sentence in unavailable_message(
        ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT), issuer.token(ANN)
    )


def test_keys_are_not_fetched_over_plain_http_from_other_machines(issuer: OidcIssuer) -> None:
    found = {"issuer": issuer.url, "jwks_uri": "http://keys.example/"}
    issuer.answers[DISCOVERY_PATH] = (200, json.dumps(found).encode())
    assert "neither https nor on loopback" in unavailable_message(
        ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT), issuer.token(ANN)
    )


def test_an_https_issuer_needs_a_certificate_that_the_system_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ServiceCertificates.load_or_create(tmp_path, [], time.time())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.server.certificate, made.server.key)
    with OidcIssuer(tls) as issuer:
        external = ExternalIssuer(issuer.url, [AUDIENCE], client=HttpClient(local_targets=LocalTargets.LOOPBACK))
        assert "its certificate is not trusted" in unavailable_message(external, issuer.token(ANN))
        monkeypatch.setenv("SSL_CERT_FILE", str(made.ca.certificate))
        external = ExternalIssuer(issuer.url, [AUDIENCE], client=HttpClient(local_targets=LocalTargets.LOOPBACK))
        assert verified(external, issuer.token(ANN)).primary_id == "oidc:ann"


def test_the_keys_of_an_issuer_are_not_fetched_from_this_machine_without_the_setting(issuer: OidcIssuer) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    port = issuer.url.rpartition(":")[2]
    external = ExternalIssuer(f"https://login.example:{port}", [AUDIENCE], client=HttpClient(resolve=resolve))
    assert "'login.example' is this machine, which the setting 'local_targets' does not allow" in unavailable_message(
        external, issuer.token(ANN)
    )
    assert issuer.requested_paths == []


UNSAFE = (
    "http://login.example", "ftp://127.0.0.1", "file:///etc/passwd", "login.example", "", "https://", "https://[",
    "http://localhost.evil", "http://127.0.0.1:port",
)  # fmt: skip


@pytest.mark.parametrize("url", UNSAFE)
def test_an_issuer_must_be_https_unless_it_is_on_loopback(url: str) -> None:
    with pytest.raises(Rejected, match="is neither https nor on loopback: give one that begins with https://"):
        ExternalIssuer(url, [AUDIENCE], client=LOOPBACK_CLIENT)
    if url:
        with pytest.raises(Rejected, match="is neither https nor on loopback"):
            ExternalIssuer("https://login.example", [AUDIENCE], url, client=LOOPBACK_CLIENT)


def test_an_issuer_without_an_audience_is_rejected() -> None:
    with pytest.raises(
        Rejected, match="has no audience, so its tokens for any service would be accepted: name at least one"
    ):
        ExternalIssuer("https://login.example", [], client=LOOPBACK_CLIENT)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"iss": "https://evil"}, TokenErrorReason.WRONG_ISSUER),
        ({"aud": "api://other"}, TokenErrorReason.WRONG_AUDIENCE),
        ({"exp": NOW}, TokenErrorReason.EXPIRED),
        ({"nbf": NOW + 61}, TokenErrorReason.NOT_YET_VALID),
        ({"exp": None}, TokenErrorReason.MALFORMED),
        ({"aud": None}, TokenErrorReason.MALFORMED),
        ({"sub": None}, TokenErrorReason.MALFORMED),
        ({"sub": ""}, TokenErrorReason.MALFORMED),
        ({"exp": -1e300}, TokenErrorReason.EXPIRED),
    ],
    ids=str,
)
def test_a_token_needs_the_right_issuer_audience_and_time(
    issuer: OidcIssuer, change: dict[str, Any], reason: TokenErrorReason
) -> None:
    assert (
        refusal(ExternalIssuer(issuer.url, [AUDIENCE], client=LOOPBACK_CLIENT), issuer.token(ANN | change)).reason
        is reason
    )
