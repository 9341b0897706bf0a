"""Sign-in with a client's secret; a token has the grants of the moment of each call."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from forewarn.auth.client_secrets import hash_secret
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import TokenIssuer, TokenSubject
from forewarn.control.fleet import FleetChange
from forewarn.core.access import Grant, RegisteredClient, Role, client_principal, vm_principal
from forewarn.core.commit import Commit
from forewarn.core.fleet import Vm
from forewarn.core.request import RequestedOperation
from forewarn.core.resource_ids import ROOT_RESOURCE, vm_resource_id
from forewarn.protocol.managed_identity import ManagedIdentity
from forewarn.web.authentication import BearerAuthenticator
from tests.support.oidc_issuer import LOOPBACK_CLIENT, OidcIssuer
from tests.support.world import a_vm

BASE = "https://localhost:8443"
NOW = 1_790_000_000.0
SECRET = "s3cret+/ of ci"
VMS = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines"
FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
GOOD = {
    "grant_type": "client_credentials",
    "client_id": "ci",
    "client_secret": SECRET,
    "scope": "https://management.azure.com/.default",
}


class Time:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class SignInService:
    """A service with sign-in, and a client without any role."""

    def __init__(self, arm_of: Callable[..., Any], issuer: TokenIssuer, external: ExternalIssuer | None = None) -> None:
        self.time = Time()
        self.sign_in = TokenService(issuer=issuer, tenant_id="t-1", external=external)
        inside = arm_of(sign_in=self.sign_in, real_time=self.time)
        self.world = inside.world
        self.arm = inside.behind(BearerAuthenticator(sign_in=self.sign_in, store=self.world.store, real_time=self.time))
        self.commit(clients=(RegisteredClient(id="ci", secret_hash=hash_secret(SECRET), name="the pipeline"),))

    def vm_token(self, vm: Vm) -> str:
        """A token of the VM's managed identity for this service."""
        identity = ManagedIdentity(vm=vm.key, vm_id=vm.vm_id, name=vm.name, resource_id=vm_resource_id(vm))
        return self.sign_in.issue_for_vm(identity, BASE, NOW).token

    def commit(self, **parts: Any) -> None:
        self.world.do(self.world.store.commit(Commit(**parts)))

    def grant(self, role: Role, over: str, to: str = client_principal("ci")) -> None:
        self.commit(grants=(Grant(id=f"{role} {to}", role=role, principal=to, resource=over),))

    def ask(self, path: str = "/adfs/oauth2/token", headers: dict[str, str] | None = None, **fields: str | None) -> Any:
        """Requests a token with these form fields changed; None leaves one out."""
        form = {name: text for name, text in (GOOD | fields).items() if text is not None}
        return self.arm.call("POST", path, urlencode(form).encode(), FORM | (headers or {}))

    def token(self) -> str:
        answer = self.ask()
        assert answer.status == 200, answer.content
        token: str = answer.json["access_token"]
        return token

    def get(self, token: str, path: str = "/subscriptions", scheme: str = "Bearer") -> Any:
        return self.arm.call("GET", path, headers={"authorization": f"{scheme} {token}"})


@pytest.fixture
def issuer(signing_key: Any) -> TokenIssuer:
    return TokenIssuer(f"{BASE}/adfs", signing_key, audiences=[BASE])


@pytest.fixture
def service(arm_of: Callable[..., Any], issuer: TokenIssuer) -> SignInService:
    return SignInService(arm_of, issuer)


@pytest.fixture
def elsewhere() -> Iterator[OidcIssuer]:
    with OidcIssuer() as started:
        yield started


def basic(client_id: str, secret: str) -> dict[str, str]:
    both = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return {"authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}


def refusal(answer: Any) -> tuple[int, str, int]:
    """Status, OAuth error and Azure's number; checks that the response has no secret and is not cached."""
    shown = answer.json
    (number,) = shown["error_codes"]
    assert shown["error_description"].startswith(f"AADSTS{number}: ")
    assert SECRET not in answer.content.decode()
    assert answer.headers["cache-control"] == "no-store"
    return answer.status, shown["error"], number


@pytest.mark.parametrize("path", ["/adfs/oauth2/token", "/t-1/oauth2/v2.0/token", "/common/oauth2/v2.0/token"])
def test_a_client_gets_a_token_for_its_secret(service: SignInService, path: str) -> None:
    answer = service.ask(path, client_info="1")
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    shown = answer.json
    assert {name: shown[name] for name in shown if name != "access_token"} == {
        "token_type": "Bearer",
        "expires_in": 3600,
        "ext_expires_in": 3600,
    }
    claims = service.world.do(service.sign_in.verify(shown["access_token"], NOW))
    assert (claims.primary_id, claims.tenant, claims.expires_at) == ("client:ci", "t-1", NOW + 3600)


def test_a_client_may_send_its_secret_in_a_header(service: SignInService) -> None:
    assert service.ask(headers=basic("ci", SECRET), client_id=None, client_secret=None).status == 200
    wrong = service.ask(headers=basic("ci", "guessed"), client_id=None, client_secret=None)
    assert refusal(wrong) == (401, "invalid_client", 7000215)
    assert wrong.headers["www-authenticate"].startswith("Basic ")
    garbage = service.ask(headers={"authorization": "Basic ???"}, client_id=None, client_secret=None)
    assert refusal(garbage)[:2] == (400, "invalid_request")


def test_a_clients_id_is_found_in_any_case(service: SignInService) -> None:
    assert service.ask(client_id="CI").status == 200


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"client_secret": "guessed"}, (401, "invalid_client", 7000215)),
        ({"client_secret": SECRET.upper()}, (401, "invalid_client", 7000215)),
        ({"client_id": "nobody"}, (401, "invalid_client", 7000215)),
        ({"client_id": "\x00\ud7ff" + "x" * 9000}, (401, "invalid_client", 7000215)),
        ({"client_secret": None}, (401, "invalid_client", 7000218)),
        ({"client_secret": ""}, (401, "invalid_client", 7000218)),
        ({"client_id": None}, (400, "invalid_request", 900144)),
        ({"grant_type": None}, (400, "invalid_request", 900144)),
        ({"grant_type": "password"}, (400, "unsupported_grant_type", 70003)),
        ({"grant_type": "refresh_token"}, (400, "unsupported_grant_type", 70003)),
        ({"scope": "https://vault.azure.net/.default"}, (400, "invalid_scope", 70011)),
        ({"scope": "openid"}, (400, "invalid_scope", 70011)),
        ({"scope": "https://[/.default"}, (400, "invalid_scope", 70011)),
        ({"scope": None, "resource": "https://vault.azure.net"}, (400, "invalid_resource", 500011)),
    ],
)
def test_a_failed_sign_in_is_an_oauth_error(service: SignInService, fields: Any, refused: tuple[int, str, int]) -> None:
    assert refusal(service.ask(**fields)) == refused


def test_an_unknown_client_and_a_wrong_secret_look_the_same(service: SignInService) -> None:
    unknown, wrong = service.ask(client_id="xx"), service.ask(client_secret="guessed")
    assert unknown.status == wrong.status == 401
    assert unknown.content.replace(b"'xx'", b"'ci'") == wrong.content
    assert unknown.headers == wrong.headers


def test_a_caller_without_a_secret_does_not_learn_the_audiences(service: SignInService) -> None:
    assert refusal(service.ask(client_secret="guessed", scope="https://vault.azure.net/.default"))[0] == 401


@pytest.mark.parametrize(
    "fields",
    [
        {"scope": "https://management.azure.com//.default"},
        {"scope": "https://management.core.windows.net/.default"},
        {"scope": f"{BASE}/.default"},
        {"scope": f"{BASE}//.default"},
        {"scope": None, "resource": f"{BASE}/"},
        {"scope": None},
    ],
)
def test_a_token_is_issued_for_every_audience_that_clients_use(service: SignInService, fields: Any) -> None:
    answer = service.ask(**fields)
    assert answer.status == 200, answer.content
    assert service.get(answer.json["access_token"]).status == 200


def test_a_token_request_that_is_not_a_form_is_rejected(service: SignInService) -> None:
    for body in (b"", b"\xff\xfe", b"{}", b"&&&=", b"grant_type"):
        answer = service.arm.call("POST", "/adfs/oauth2/token", body, FORM)
        assert refusal(answer)[:2] == (400, "invalid_request"), body
    assert refusal(service.arm.call("POST", "/adfs/oauth2/token", dict(GOOD)))[:2] == (400, "invalid_request")
    assert service.arm.call("POST", "/adfs/oauth2/token", b"x" * 70_000, FORM).status == 413


def test_neither_secrets_nor_tokens_are_logged(service: SignInService, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        token = service.token()
        service.ask(client_secret="almost the secret")
        service.ask(client_id=SECRET, client_secret="ci")
        service.get(token)
        service.get(token + "x")
    assert "'ci'" in caplog.text
    assert not any(secret in caplog.text for secret in (SECRET, "almost the secret", token))


def test_a_token_has_the_grants_of_the_moment_of_the_call(service: SignInService) -> None:
    token = service.token()
    assert service.get(token, f"{VMS}/db").error[:2] == (403, "AuthorizationFailed")
    assert service.get(token, f"{VMS}/db").error[2].startswith("client ci does not have the right to read over")
    service.grant(Role.READER, VMS.rpartition("/providers")[0])
    assert service.get(token, f"{VMS}/db").json["name"] == "db"
    assert [one["tenantId"] for one in service.get(token).json["value"]] == ["t-1"]
    assert service.get(token, "/tenants").json["value"][0]["tenantId"] == "t-1"
    service.commit(removed_grants=(f"{Role.READER} client:ci",))
    assert service.get(token, f"{VMS}/db").status == 403


def test_the_token_of_a_removed_client_is_rejected(service: SignInService) -> None:
    token = service.token()
    service.grant(Role.ADMINISTRATOR, ROOT_RESOURCE)
    service.commit(removed_clients=("ci",))
    assert service.get(token).error == (401, "AuthenticationFailed", "client 'ci' was removed: sign in as another")
    assert refusal(service.ask()) == (401, "invalid_client", 7000215)


def test_a_renewed_secret_replaces_the_old_one(service: SignInService) -> None:
    service.commit(clients=(RegisteredClient(id="ci", secret_hash=hash_secret("another")),))
    assert service.ask().status == 401
    assert service.ask(client_secret="another").status == 200


def test_a_renewed_secret_invalidates_tokens_of_the_old_one(service: SignInService) -> None:
    stolen = service.token()
    service.commit(clients=(RegisteredClient(id="ci", secret_hash=hash_secret("another"), name="the pipeline"),))
    assert service.get(stolen).error[::2] == (401, "client 'ci' has a new secret: sign in with that one")
    fresh = service.ask(client_secret="another").json["access_token"]
    assert service.get(fresh).status == 200


def test_a_token_is_not_valid_for_a_new_client_with_the_same_id(service: SignInService) -> None:
    left_behind = service.token()
    service.commit(removed_clients=("ci",))
    service.commit(clients=(RegisteredClient(id="ci", secret_hash=hash_secret("another"), name="the pipeline"),))
    service.grant(Role.ADMINISTRATOR, ROOT_RESOURCE)
    assert service.get(left_behind).status == 401
    assert service.get(service.ask(client_secret="another").json["access_token"]).status == 200


def test_a_token_expires(service: SignInService) -> None:
    token = service.token()
    service.time.now += 3599
    assert service.get(token).status == 200
    service.time.now += 1
    status, code, message = service.get(token).error
    assert (status, code) == (401, "AuthenticationFailed")
    assert message.startswith("the token expired at 2026-")
    assert service.get(service.token()).status == 200


def test_lab_time_does_not_expire_a_token(service: SignInService) -> None:
    token = service.token()
    service.world.advance(86_400)
    assert service.get(token).status == 200


@pytest.mark.parametrize("path", ["/subscriptions", f"{VMS}/db", f"{VMS}/none", "/forewarn/v1/events"])
def test_a_caller_without_a_token_learns_where_to_sign_in(service: SignInService, path: str) -> None:
    answer = service.arm.call("GET", path)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == f'Bearer authorization_uri="{BASE}/adfs", error="invalid_token"'
    assert "no Authorization header" in answer.json["error"]["message"]


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "..", "é.é.é", "x" * 40_000])
def test_a_malformed_token_is_rejected(service: SignInService, token: str) -> None:
    status, code, message = service.get(token).error
    assert (status, code) == (401, "AuthenticationFailed")
    assert not token.strip("x") or token not in message


def test_other_authorization_schemes_are_rejected(service: SignInService) -> None:
    token = service.token()
    assert service.get(token, scheme="bearer").status == 200
    for scheme in ("Basic", "Token", "Bearer,", ""):
        assert service.get(token, scheme=scheme).status == 401, scheme


def test_a_forged_token_is_rejected(service: SignInService, issuer: TokenIssuer) -> None:
    header, payload, signature = service.token().split(".")
    for forged in (f"{header}.{payload}.", f"{header}.{payload[:-2]}AA.{signature}", f"{header}.{payload}.AAAA"):
        assert service.get(forged).status == 401
    strange = issuer.issue_token(
        TokenSubject(client_id="ci", object_id="o", tenant="t-1"), "https://elsewhere.example.org", NOW
    ).token
    assert "not for this service" in service.get(strange).error[2]


def test_a_vm_acts_under_its_own_name(service: SignInService) -> None:
    vm = service.world.vm("web-0")
    token = service.vm_token(vm)
    assert service.get(token, f"{VMS}/db").error[2].startswith("VM web-0 does not have the right")
    service.grant(Role.READER, f"{VMS}/db", to=vm_principal(vm.vm_id))
    assert service.get(token, f"{VMS}/db").status == 200
    assert service.get(token, f"{VMS}/spot").status == 403


def test_the_token_of_a_removed_vm_is_rejected_even_if_a_new_vm_has_its_name(service: SignInService) -> None:
    vm = service.world.vm("db")
    token = service.vm_token(vm)
    service.grant(Role.READER, ROOT_RESOURCE, to=vm_principal(vm.vm_id))
    assert service.get(token).status == 200
    service.world.ask(RequestedOperation.DELETE, "db")
    service.world.advance(60)
    assert service.get(token).error[2].startswith("VM 'db', the owner of this token, was removed")
    service.world.do(service.world.control.fleet.apply_change(FleetChange(vms=(a_vm("db", host="h1"),)), who="ann"))
    assert service.world.vm("db").vm_id != vm.vm_id
    assert service.get(token).status == 401


def test_an_external_issuer_replaces_our_own_tokens(
    arm_of: Callable[..., Any], issuer: TokenIssuer, elsewhere: OidcIssuer
) -> None:
    service = SignInService(arm_of, issuer, ExternalIssuer(elsewhere.url, ["api://forewarn"], client=LOOPBACK_CLIENT))
    refused = service.ask()
    assert refusal(refused) == (400, "unauthorized_client", 700016)
    assert elsewhere.url in refused.json["error_description"]
    answer = service.arm.call("GET", "/subscriptions")
    assert answer.headers["www-authenticate"].startswith(f'Bearer authorization_uri="{elsewhere.url}"')

    shown = {"aud": "api://forewarn", "exp": NOW + 60, "sub": "ann-1", "preferred_username": "client ci"}
    token = elsewhere.token(shown)
    assert service.get(token, f"{VMS}/db").error[2].startswith("client ci (oidc) does not have the right")
    service.grant(Role.READER, ROOT_RESOURCE, to="oidc:ann-1")
    assert service.get(token, f"{VMS}/db").status == 200
    assert service.get(elsewhere.token(shown | {"exp": NOW}), f"{VMS}/db").status == 401
    elsewhere.add("curve", ec.generate_private_key(ec.SECP256R1()))
    service.time.now += 31  # the time before the issuer's keys are fetched again
    assert service.get(elsewhere.token(shown, "curve", "ES256"), f"{VMS}/db").status == 200
    own = service.sign_in.issue_for_client(RegisteredClient(id="ci", secret_hash=b""), BASE, NOW).token
    assert service.get(own).status == 401


def test_an_unreachable_issuer_authenticates_no_caller(
    arm_of: Callable[..., Any], issuer: TokenIssuer, elsewhere: OidcIssuer
) -> None:
    elsewhere.is_down = True
    service = SignInService(arm_of, issuer, ExternalIssuer(elsewhere.url, ["api://forewarn"], client=LOOPBACK_CLIENT))
    answer = service.get(elsewhere.token({"aud": "api://forewarn", "exp": NOW + 60, "sub": "ann-1"}))
    assert answer.error[:2] == (503, "ServiceUnavailable")
    assert answer.headers["retry-after"] == "1"
