"""What a VM asks for with a token's request, and what it is told (spec §2.8)."""

import json
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.protocol.exchange import EndpointRules, MetadataRequest, read_request
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.managed_identity import (
    ManagedIdentity,
    ManagedIdentityToken,
    TokenRequest,
    WrongResource,
    identity_not_found,
    token_response,
)

PATH = "/metadata/identity/oauth2/token"
ARM = "https://management.azure.com/"
QUERY = "api-version=2018-02-01&resource=https%3A%2F%2Fmanagement.azure.com%2F"
HEADER = (("metadata", "true"),)
RULES = EndpointRules(gives_tokens=True)
RESOURCE_ID = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/web-0"
IDENTITY = ManagedIdentity(
    vm="s/rg/web-0", vm_id="5c4bebd0-1f67-4c47-a006-50affae50bbf", name="web-0", resource_id=RESOURCE_ID
)
TOKEN = ManagedIdentityToken(text="head.body.sign", not_before=1_700_000_000.7, expires_at=1_700_003_600.7)


def ask(
    query: str = QUERY,
    *,
    path: str = PATH,
    headers: tuple[tuple[str, str], ...] = HEADER,
    method: str = "GET",
    rules: EndpointRules = RULES,
) -> MetadataRequest | HttpResponse:
    target = f"{path}?{query}" if query else path
    return read_request(HttpRequest(method=method, target=target, headers=headers), known=True, rules=rules)


def told(answer: MetadataRequest | HttpResponse) -> tuple[int, str, str]:
    """Status, error and description of a refusal in the shape of OAuth."""
    assert isinstance(answer, HttpResponse)
    assert ("Content-Type", "application/json; charset=utf-8") in answer.headers
    body = json.loads(answer.body)
    assert list(body) == ["error", "error_description"]
    return answer.status, body["error"], body["error_description"]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/", "/Metadata/Identity/OAuth2/Token", f"http://169.254.169.254{PATH}"])
def test_a_token_is_asked_for_by_its_resource(path: str) -> None:
    """With a slash at the end too: the vendor's JavaScript client sends one."""
    assert ask(path=path) == TokenRequest(resource=ARM)


@pytest.mark.parametrize("version", ["2018-02-01", "2019-08-01", "2025-04-07", "1999-01-01"])
def test_any_date_will_do_as_api_version(version: str) -> None:
    assert ask(f"api-version={version}&resource=r") == TokenRequest(resource="r")


def test_an_identity_may_be_named_in_three_ways() -> None:
    assert ask(f"{QUERY}&client_id=c") == TokenRequest(resource=ARM, client_id="c")
    assert ask(f"{QUERY}&object_id=o") == TokenRequest(resource=ARM, object_id="o")
    assert ask(f"{QUERY}&msi_res_id=%2Fr") == TokenRequest(resource=ARM, resource_id="/r")
    assert ask(f"{QUERY}&mi_res_id=%2Fr") == TokenRequest(resource=ARM, resource_id="/r")
    assert ask(f"{QUERY}&client_id=&object_id=&msi_res_id=") == TokenRequest(resource=ARM)


@pytest.mark.parametrize("headers", [(), (("metadata", "false"),), (("metadata", "true"), ("metadata", ""))])
@pytest.mark.parametrize("query", ["", QUERY, "api-version=2018-02-01"])
def test_without_the_header_the_refusal_is_the_vendors(headers: tuple[tuple[str, str], ...], query: str) -> None:
    """A client that looks whether there is an identity endpoint sends no header, perhaps no query either."""
    answer = ask(query, headers=headers)
    assert isinstance(answer, HttpResponse)
    assert answer.status == 400
    assert answer.body == b'{"error":"invalid_request","error_description":"Required metadata header not specified"}'


@pytest.mark.parametrize(
    "version", ["", "api-version=", "api-version=latest", "api-version=2018", "api-version=2018-2-1"]
)
def test_without_an_api_version_there_is_no_token(version: str) -> None:
    status, error, reason = told(ask(f"{version}&resource=r"))
    assert (status, error) == (400, "invalid_request")
    assert reason == "Required api-version not specified: give a date such as 2018-02-01"


@pytest.mark.parametrize("resource", ["", "resource=", "resources=r"])
def test_without_a_resource_there_is_no_token(resource: str) -> None:
    status, error, reason = told(ask(f"api-version=2018-02-01&{resource}"))
    assert (status, error) == (400, "invalid_request")
    assert reason == "Required resource not specified: name what the token is for"


def test_where_anybody_could_pose_as_the_vm_there_is_no_token_unless_a_setting_says_so() -> None:
    status, error, reason = told(ask(rules=EndpointRules()))
    assert (status, error) == (403, "access_denied")
    assert "any program of this machine can pose as the VM" in reason
    assert "identity_on_loopback = true" in reason


@pytest.mark.parametrize(
    ("query", "headers", "words"),
    [
        (QUERY, (*HEADER, ("origin", "http://evil.example")), "Origin header not allowed"),
        (QUERY, (*HEADER, ("x-forwarded-for", "10.0.0.1")), "X-Forwarded-For header not allowed"),
        (f"{QUERY}&Resource=other", HEADER, "Duplicate query parameter: resource"),
    ],
)
def test_what_no_program_in_a_vm_sends_is_refused_as_anywhere(
    query: str, headers: tuple[tuple[str, str], ...], words: str
) -> None:
    """Spec §2.2, §2.3."""
    answer = ask(query, headers=headers)
    assert isinstance(answer, HttpResponse)
    assert (answer.status, json.loads(answer.body)) == (400, {"error": f"Bad request. {words}"})


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD", "DELETE"])
def test_a_token_can_only_be_read(method: str) -> None:
    answer = ask(method=method)
    assert isinstance(answer, HttpResponse)
    assert (answer.status, b"InvalidHttpVerb" in answer.body) == (400, True)


def test_of_several_defects_the_first_in_order_is_told() -> None:
    """Spec §2.7, §2.8: header, api-version, resource, place."""
    defects = ("header", "api-version", "resource", "loopback")
    for chosen in product([False, True], repeat=len(defects)):
        wrong = {name for name, is_wrong in zip(defects, chosen, strict=True) if is_wrong}
        sound = {"api-version": "2018-02-01", "resource": "r"}
        answer = ask(
            "&".join(f"{name}={value}" for name, value in sound.items() if name not in wrong),
            headers=() if "header" in wrong else HEADER,
            rules=EndpointRules(gives_tokens="loopback" not in wrong),
        )
        first = next((name for name in defects if name in wrong), None)
        if first is None:
            assert answer == TokenRequest(resource="r")
        else:
            assert first in told(answer)[2]


def test_the_answer_is_what_the_vendors_clients_read() -> None:
    """All values are strings, and times are real ones (spec §12)."""
    answer = token_response(TOKEN, ask=TokenRequest(resource=ARM), identity=IDENTITY, now=1_700_000_001)
    assert answer.status == 200
    assert answer.headers == (
        ("Content-Type", "application/json; charset=utf-8"),
        ("Cache-Control", "no-store"),
    )
    assert json.loads(answer.body) == {
        "access_token": "head.body.sign",
        "client_id": IDENTITY.client_id,
        "expires_in": "3599",
        "expires_on": "1700003600",
        "ext_expires_in": "3599",
        "not_before": "1700000000",
        "resource": ARM,
        "token_type": "Bearer",
    }


def test_a_token_that_has_ended_is_not_said_to_last_less_than_no_time() -> None:
    answer = token_response(TOKEN, ask=TokenRequest(resource=ARM), identity=IDENTITY, now=1_800_000_000)
    assert json.loads(answer.body)["expires_in"] == "0"


def test_a_token_is_not_shown_by_accident() -> None:
    assert TOKEN.text not in repr(TOKEN)


def test_a_resource_that_nobody_here_serves_is_refused_with_those_that_are() -> None:
    refusal = WrongResource(accepted=("https://management.azure.com", "https://localhost:8443"))
    answer = token_response(refusal, ask=TokenRequest(resource="https://vault.azure.net"), identity=IDENTITY, now=0)
    assert told(answer) == (
        400,
        "invalid_resource",
        "Nobody here takes a token for 'https://vault.azure.net': "
        "ask for one of https://management.azure.com, https://localhost:8443",
    )


def test_where_nobody_takes_tokens_there_is_nothing_to_ask_for() -> None:
    answer = token_response(
        WrongResource(accepted=()), ask=TokenRequest(resource=f"{'x' * 200}"), identity=IDENTITY, now=0
    )
    status, error, reason = told(answer)
    assert (status, error) == (400, "invalid_resource")
    assert reason == f"Nobody here takes a token for '{'x' * 100}…': the service has no console for VMs"


def test_an_identity_that_is_not_the_callers_is_not_found() -> None:
    assert told(identity_not_found()) == (400, "invalid_request", "Identity not found")


def test_an_identity_is_known_by_each_of_its_names_and_all_that_are_given_must_fit() -> None:
    own = {"client_id": IDENTITY.client_id, "object_id": IDENTITY.object_id, "resource_id": RESOURCE_ID}
    for names in product([None, "own", "shouted", "foreign"], repeat=3):
        spelling = {"own": str, "shouted": str.upper, "foreign": lambda text: f"{text}0"}
        chosen = {name: spelling[how](own[name]) for name, how in zip(own, names, strict=True) if how}
        assert IDENTITY.matches(TokenRequest(resource=ARM, **chosen)) is ("foreign" not in names), chosen


def test_a_vm_that_comes_back_under_its_name_is_another_identity() -> None:
    def identity(vm_id: str) -> ManagedIdentity:
        return ManagedIdentity(vm="s/rg/web-0", vm_id=vm_id, name="web-0", resource_id=RESOURCE_ID)

    ids = {identity("a").client_id, identity("a").object_id, identity("b").client_id, identity("b").object_id}
    assert len(ids) == 4
    assert identity("a").client_id == identity("A").client_id


def test_the_ids_of_an_identity_stay_what_they_are() -> None:
    """Grants and clients' settings hold them."""
    assert IDENTITY.client_id == "08d8aa58-549f-5b71-aed5-01460ba9794e"
    assert IDENTITY.object_id == "0b12e39e-3620-51af-863b-daa7617232d4"


@given(st.text(max_size=300), st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_whatever_resource_is_named_the_answer_is_json(resource: str, text: str) -> None:
    asked = TokenRequest(resource=resource, client_id=text)
    for given_ in (TOKEN, WrongResource(accepted=(text,))):
        json.loads(token_response(given_, ask=asked, identity=IDENTITY, now=0).body)
