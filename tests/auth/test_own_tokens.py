"""Our own tokens: real JWTs that Azure's clients accept and that cannot be forged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from forewarn.auth.claims import InvalidToken, TokenErrorReason
from forewarn.auth.tokens import SigningKey, TokenIssuer, TokenSubject
from forewarn.errors import Rejected

NOW = 1_790_000_000.0
URL = "https://localhost:8443/adfs"
HERE = "https://localhost:8443"
ARM = "https://management.azure.com"
CLIENT = TokenSubject(client_id="Deploy", object_id="6f0c", tenant="72f9", name="the deployment")
VM = TokenSubject(
    client_id="a1",
    object_id="b2",
    tenant="72f9",
    name="web-1",
    vm_key="rg/web-1",
    vm_id="C3-4D",
    resource_id="/subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/web-1",
)
PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
FOREIGN_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def an_issuer(lifetime_s: int = 3600) -> TokenIssuer:
    return TokenIssuer(URL, SigningKey(PRIVATE), lifetime_s, [f"{HERE}/"])


def payload_of(token: str) -> dict[str, Any]:
    payload: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return payload


def forged(change: dict[str, Any], key: Any = PRIVATE, algorithm: str = "RS256", **header: Any) -> str:
    """One of our tokens with changed claims, signed with this key."""
    payload = payload_of(an_issuer().issue_token(CLIENT, ARM, NOW).token) | change
    payload = {name: value for name, value in payload.items() if value is not None}
    return jwt.encode(payload, key, algorithm, headers={"kid": SigningKey(PRIVATE).kid} | header)


def refusal(token: str, now: float = NOW) -> InvalidToken:
    with pytest.raises(InvalidToken) as refused:
        an_issuer().verify(token, now)
    assert len(token) < 20 or token not in str(refused.value)
    return refused.value


def test_the_token_of_a_client_gives_its_claims() -> None:
    issuer = an_issuer()
    claims = issuer.verify(issuer.issue_token(CLIENT, ARM, NOW).token, NOW)
    assert (claims.primary_id, claims.ids) == ("client:deploy", ("client:deploy",))
    assert (claims.name, claims.tenant, claims.expires_at) == ("the deployment", "72f9", NOW + 3600)
    assert (claims.vm_key, claims.vm_id) == ("", "")


def test_the_token_of_a_managed_identity_gives_the_vm() -> None:
    issuer = an_issuer()
    claims = issuer.verify(issuer.issue_token(VM, ARM, NOW).token, NOW)
    assert (claims.primary_id, claims.vm_key, claims.vm_id) == ("vm:c3-4d", "rg/web-1", "C3-4D")


def test_a_token_has_the_claims_that_azure_clients_read() -> None:
    payload = payload_of(an_issuer().issue_token(VM, f"{ARM}/", NOW).token)
    identifier = payload.pop("uti")
    assert payload.pop("jti") == identifier
    del payload["forewarn_vm_key"], payload["forewarn_vm_id"]
    assert payload == {
        "iss": URL, "aud": f"{ARM}/", "sub": "b2", "oid": "b2", "appid": "a1", "tid": "72f9", "idtyp": "app",
        "ver": "1.0", "iat": NOW, "nbf": NOW, "exp": NOW + 3600, "app_displayname": "web-1",
        "xms_mirid": VM.resource_id,
    }  # fmt: skip


def test_a_token_can_be_verified_with_the_published_keys() -> None:
    issuer = an_issuer()
    token = issuer.issue_token(CLIENT, ARM, NOW).token
    published = jwt.PyJWKSet.from_dict(issuer.jwks())
    key = published[jwt.get_unverified_header(token)["kid"]]
    assert jwt.PyJWS().decode(token, key.key, ["RS256"])
    assert set(issuer.jwks()["keys"][0]) == {"kty", "n", "e", "kid", "use", "alg"}  # and nothing private


@pytest.mark.parametrize(
    "audience",
    [ARM, f"{ARM}/", "HTTPS://Management.Azure.COM//", "https://management.core.windows.net/", HERE, f"{HERE}/"],
)
def test_every_spelling_of_our_audience_is_accepted(audience: str) -> None:
    issuer = an_issuer()
    assert issuer.verify(issuer.issue_token(CLIENT, audience, NOW).token, NOW).primary_id == "client:deploy"


@pytest.mark.parametrize(
    "audience",
    ["https://vault.azure.net", "http://management.azure.com", f"{ARM}/x", f"{ARM}.evil", "https://a@management.azure.com",
     "management.azure.com", "", "https://["],
)  # fmt: skip
def test_a_token_for_another_audience_is_issued_but_not_accepted(audience: str) -> None:
    bad = refusal(an_issuer().issue_token(CLIENT, audience, NOW).token)
    assert bad.reason is TokenErrorReason.WRONG_AUDIENCE
    assert str(bad) == f"the token is for {audience!r}, not for this service: ask for {HERE!r}"


def test_one_of_several_audiences_is_enough() -> None:
    issuer = an_issuer()
    assert issuer.verify(forged({"aud": ["https://vault.azure.net", ARM]}), NOW)
    assert refusal(forged({"aud": []})).reason is TokenErrorReason.WRONG_AUDIENCE


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (-61, TokenErrorReason.NOT_YET_VALID),
        (-60, None),
        (0, None),
        (3599.9, None),
        (3600, TokenErrorReason.EXPIRED),
        (1e9, TokenErrorReason.EXPIRED),
    ],
)
def test_a_token_may_be_used_a_minute_early_but_never_after_its_end(
    later: float, reason: TokenErrorReason | None
) -> None:
    token = an_issuer().issue_token(CLIENT, ARM, NOW).token
    if reason:
        assert refusal(token, NOW + later).reason is reason
    else:
        an_issuer().verify(token, NOW + later)


def test_an_expired_token_is_rejected_with_its_end() -> None:
    token = an_issuer().issue_token(CLIENT, ARM, NOW).token
    assert str(refusal(token, NOW + 4000)) == "the token expired at 2026-09-21T15:13:20Z: get a new one"


FORGERIES = {
    "signed by a stranger": (forged({}, FOREIGN_KEY), TokenErrorReason.BAD_SIGNATURE),
    "another issuer": (forged({"iss": "https://sts.windows.net/72f9/"}), TokenErrorReason.WRONG_ISSUER),
    "another key": (forged({}, kid="another"), TokenErrorReason.UNKNOWN_KEY),
    "a path for a key": (forged({}, kid="../../dev/null"), TokenErrorReason.UNKNOWN_KEY),
    "no key": (forged({}, kid=""), TokenErrorReason.UNKNOWN_KEY),
    "brings its key": (forged({}, FOREIGN_KEY, jwk=SigningKey(FOREIGN_KEY).jwk), TokenErrorReason.BAD_SIGNATURE),
    "brings and names its key": (
        forged({}, FOREIGN_KEY, jwk=SigningKey(FOREIGN_KEY).jwk, kid=SigningKey(FOREIGN_KEY).kid),
        TokenErrorReason.UNKNOWN_KEY,
    ),
    "says where its key is": (forged({}, FOREIGN_KEY, jku="http://127.0.0.1/k"), TokenErrorReason.BAD_SIGNATURE),
    "not signed": (forged({}, None, "none"), TokenErrorReason.BAD_SIGNATURE),
    "RS512": (forged({}, PRIVATE, "RS512"), TokenErrorReason.BAD_SIGNATURE),
    "PS256": (forged({}, PRIVATE, "PS256"), TokenErrorReason.BAD_SIGNATURE),
    "no end": (forged({"exp": None}), TokenErrorReason.MALFORMED),
    "no issuer": (forged({"iss": None}), TokenErrorReason.MALFORMED),
    "no audience": (forged({"aud": None}), TokenErrorReason.MALFORMED),
    "no subject": (forged({"oid": None}), TokenErrorReason.MALFORMED),
    "an end in words": (forged({"exp": "tomorrow"}), TokenErrorReason.MALFORMED),
    "a beginning in words": (forged({"nbf": "today"}), TokenErrorReason.MALFORMED),
    "a number for a name": (forged({"appid": 7}), TokenErrorReason.MALFORMED),
    "an extension we do not know": (forged({}, crit=["forewarn"]), TokenErrorReason.MALFORMED),
    "empty": ("", TokenErrorReason.MALFORMED),
    "opaque": ("opaque", TokenErrorReason.MALFORMED),
    "letters": ("a.b.c", TokenErrorReason.MALFORMED),
    "accents": ("é.é.é", TokenErrorReason.MALFORMED),
    "too long": (forged({"app_displayname": "a" * 20_000}), TokenErrorReason.MALFORMED),
}


@pytest.mark.parametrize(("token", "reason"), FORGERIES.values(), ids=FORGERIES)
def test_a_forged_token_is_rejected_with_its_reason(token: str, reason: TokenErrorReason) -> None:
    assert refusal(token).reason is reason


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def test_our_public_key_is_not_accepted_as_a_shared_secret() -> None:
    kid, public = SigningKey(PRIVATE).kid, PRIVATE.public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    body = an_issuer().issue_token(CLIENT, ARM, NOW).token.split(".")[1]
    for algorithm in ("HS256", "hs256"):
        signed = f"{encoded(json.dumps({'alg': algorithm, 'kid': kid}).encode())}.{body}"
        for secret in (public.public_bytes(serialization.Encoding.PEM, form), json.dumps(an_issuer().jwks()).encode()):
            proof = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
            assert refusal(f"{signed}.{encoded(proof)}").reason is TokenErrorReason.BAD_SIGNATURE


def test_a_token_without_its_signature_is_rejected() -> None:
    header, body, _ = an_issuer().issue_token(CLIENT, ARM, NOW).token.split(".")
    assert refusal(f"{header}.{body}.").reason is TokenErrorReason.BAD_SIGNATURE


def test_a_changed_token_is_rejected() -> None:
    header, body, proof = an_issuer().issue_token(CLIENT, ARM, NOW).token.split(".")
    payload = payload_of(f"{header}.{body}.{proof}") | {"forewarn_vm_id": "C3-4D"}
    assert refusal(f"{header}.{encoded(json.dumps(payload).encode())}.{proof}").reason is TokenErrorReason.BAD_SIGNATURE


def test_a_deeply_nested_header_is_malformed() -> None:
    deep = encoded(b'{"alg":"RS256","x":' + b"[" * 11_000)
    assert refusal(f"{deep}.e30.e30").reason is TokenErrorReason.MALFORMED


@given(st.text(max_size=60) | st.lists(st.binary(max_size=40).map(encoded), min_size=3, max_size=3).map(".".join))
def test_any_other_text_is_rejected_as_a_token(text: str) -> None:
    with pytest.raises(InvalidToken):
        an_issuer().verify(text, NOW)


def test_a_token_is_reused_until_half_of_its_lifetime_is_over() -> None:
    issuer = an_issuer()
    first = issuer.issue_token(CLIENT, ARM, NOW).token
    assert issuer.issue_token(CLIENT, ARM, NOW + 1799).token == first
    assert issuer.issue_token(VM, ARM, NOW).token != first
    assert issuer.issue_token(CLIENT, HERE, NOW).token != first
    second = issuer.issue_token(CLIENT, ARM, NOW + 1800)
    assert second.token != first
    assert second.expires_at == NOW + 1800 + 3600


def test_a_token_is_not_reused_after_the_clock_was_set_back() -> None:
    issuer = an_issuer()
    first = issuer.issue_token(CLIENT, ARM, NOW).token
    issuer.verify(again := issuer.issue_token(CLIENT, ARM, NOW - 7200).token, NOW - 7200)
    assert again != first


def test_the_cache_of_tokens_is_limited() -> None:
    issuer = TokenIssuer(URL, SigningKey(PRIVATE))
    for number in range(1100):
        issuer.issue_token(CLIENT, f"https://{number}.example", NOW)
    assert len(issuer._cached_tokens) == 1024
    assert (CLIENT, "https://1099.example") in issuer._cached_tokens


def test_the_repr_of_an_issued_token_hides_the_token() -> None:
    issued = an_issuer().issue_token(CLIENT, ARM, NOW)
    assert issued.token not in repr(issued)


def test_the_signing_key_is_created_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "token.pem"
    first, again = SigningKey.load_or_create(path), SigningKey.load_or_create(path)
    assert first.kid == again.kid
    assert path.stat().st_mode & 0o777 == 0o600
    token = TokenIssuer(URL, first).issue_token(CLIENT, ARM, NOW).token
    assert TokenIssuer(URL, again).verify(token, NOW).primary_id == "client:deploy"


def test_an_unusable_signing_key_is_rejected_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "token.pem"
    SigningKey.load_or_create(path)
    path.chmod(0o644)
    with pytest.raises(Rejected, match="others may read it"):
        SigningKey.load_or_create(path)
    path.chmod(0o600)
    path.write_bytes(b"garbage")
    with pytest.raises(Rejected, match="is not a private key in PEM"):
        SigningKey.load_or_create(path)
    assert path.read_bytes() == b"garbage"
