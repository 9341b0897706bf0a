"""Managed identity tokens: requests, responses and errors (spec §2.8)."""

import json
from collections.abc import Callable
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


def read(
    query: str = QUERY,
    *,
    path: str = PATH,
    headers: tuple[tuple[str, str], ...] = HEADER,
    method: str = "GET",
    rules: EndpointRules = RULES,
) -> MetadataRequest | HttpResponse:
    target = f"{path}?{query}" if query else path
    return read_request(HttpRequest(method=method, target=target, headers=headers), is_known_caller=True, rules=rules)


def oauth_error(response: MetadataRequest | HttpResponse) -> tuple[int, str, str]:
    """Status, error and description of an error response in OAuth's shape."""
    assert isinstance(response, HttpResponse)
    assert ("Content-Type", "application/json; charset=utf-8") in response.headers
    body = json.loads(response.body)
    assert list(body) == ["error", "error_description"]
    return response.status, body["error"], body["error_description"]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/", "/Metadata/Identity/OAuth2/Token", f"http://169.254.169.254{PATH}"])
def test_a_token_request_names_its_resource(path: str) -> None:
    """With a slash at the end too: Azure's JavaScript client sends one."""
    assert read(path=path) == TokenRequest(resource=ARM)


@pytest.mark.parametrize("version", ["2018-02-01", "2019-08-01", "2025-04-07", "1999-01-01"])
def test_every_date_is_a_valid_api_version(version: str) -> None:
    assert read(f"api-version={version}&resource=r") == TokenRequest(resource="r")


def test_an_identity_can_be_named_in_three_ways() -> None:
    assert read(f"{QUERY}&client_id=c") == TokenRequest(resource=ARM, client_id="c")
    assert read(f"{QUERY}&object_id=o") == TokenRequest(resource=ARM, object_id="o")
    assert read(f"{QUERY}&msi_res_id=%2Fr") == TokenRequest(resource=ARM, resource_id="/r")
    assert read(f"{QUERY}&mi_res_id=%2Fr") == TokenRequest(resource=ARM, resource_id="/r")
    assert read(f"{QUERY}&client_id=&object_id=&msi_res_id=") == TokenRequest(resource=ARM)


@pytest.mark.parametrize("headers", [(), (("metadata", "false"),), (("metadata", "true"), ("metadata", ""))])
@pytest.mark.parametrize("query", ["", QUERY, "api-version=2018-02-01"])
def test_a_request_without_the_header_gets_azures_error(headers: tuple[tuple[str, str], ...], query: str) -> None:
    """A client that probes for an identity endpoint sends no header, and perhaps no query."""
    response = read(query, headers=headers)
    assert isinstance(response, HttpResponse)
    assert response.status == 400
    assert response.body == b'{"error":"invalid_request","error_description":"Required metadata header not specified"}'


@pytest.mark.parametrize(
    "version", ["", "api-version=", "api-version=latest", "api-version=2018", "api-version=2018-2-1"]
)
def test_a_token_request_needs_an_api_version(version: str) -> None:
    status, error, reason = oauth_error(read(f"{version}&resource=r"))
    assert (status, error) == (400, "invalid_request")
    assert reason == "Required api-version not specified: give a date such as 2018-02-01"


@pytest.mark.parametrize("resource", ["", "resource=", "resources=r"])
def test_a_token_request_needs_a_resource(resource: str) -> None:
    status, error, reason = oauth_error(read(f"api-version=2018-02-01&{resource}"))
    assert (status, error) == (400, "invalid_request")
    assert reason == "Required resource not specified: name what the token is for"


HOSTS = ["169.254.169.254", "169.254.169.254:80", "127.0.0.7:8254", "[::1]:8254", "[::1]", "localhost", "LocalHost:1"]
NAMES = ["evil.example", "evil.example:80", "169.254.169.254.evil.example", "localhost.evil.example", "[evil]", "a:b:c"]


@pytest.mark.parametrize("host", HOSTS)
def test_a_token_request_names_the_endpoint_by_address(host: str) -> None:
    """Spec §2.8; an old client sends no host at all."""
    assert read(headers=(*HEADER, ("host", host))) == TokenRequest(resource=ARM)
    assert read(path=f"http://169.254.169.254{PATH}", headers=HEADER) == TokenRequest(resource=ARM)


@pytest.mark.parametrize("host", NAMES)
def test_a_token_request_for_another_host_name_is_refused(host: str) -> None:
    """Spec §2.8: the name of a web page's host, which its owner has given the address of the endpoint."""
    status, error, reason = oauth_error(read(headers=(*HEADER, ("host", host))))
    assert (status, error) == (403, "access_denied")
    assert reason.endswith("ask for it by address, such as 169.254.169.254")


def test_the_host_of_an_absolute_url_counts_instead_of_the_header() -> None:
    """Spec §2.8, RFC 9112 §3.2.2."""
    local, foreign = ("host", "169.254.169.254"), ("host", "evil.example")
    assert oauth_error(read(path=f"http://evil.example{PATH}", headers=(*HEADER, local)))[0] == 403
    assert read(path=f"http://169.254.169.254{PATH}", headers=(*HEADER, foreign)) == TokenRequest(resource=ARM)


def test_loopback_gets_no_token_unless_a_setting_allows_it() -> None:
    status, error, reason = oauth_error(read(rules=EndpointRules()))
    assert (status, error) == (403, "access_denied")
    assert "any program of this machine can pose as the VM" in reason
    assert "identity_on_loopback = true" in reason


@pytest.mark.parametrize(
    ("query", "headers", "reason"),
    [
        (QUERY, (*HEADER, ("origin", "http://evil.example")), "Origin header not allowed"),
        (QUERY, (*HEADER, ("sec-fetch-site", "cross-site")), "Cross-site request not allowed"),
        (QUERY, (*HEADER, ("x-forwarded-for", "10.0.0.1")), "X-Forwarded-For header not allowed"),
        (f"{QUERY}&Resource=other", HEADER, "Duplicate query parameter: resource"),
    ],
)
def test_token_requests_of_browsers_and_proxies_are_refused_too(
    query: str, headers: tuple[tuple[str, str], ...], reason: str
) -> None:
    """Spec §2.2, §2.3."""
    response = read(query, headers=headers)
    assert isinstance(response, HttpResponse)
    assert (response.status, json.loads(response.body)) == (400, {"error": f"Bad request. {reason}"})


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD", "DELETE"])
def test_the_token_path_accepts_get_only(method: str) -> None:
    response = read(method=method)
    assert isinstance(response, HttpResponse)
    assert (response.status, b"InvalidHttpVerb" in response.body) == (400, True)


def test_a_token_request_with_several_defects_gets_the_error_of_the_first_check() -> None:
    """Spec §2.7, §2.8: header, api-version, resource, host, listener."""
    defects = ("header", "api-version", "resource", "host name", "loopback")
    for chosen in product([False, True], repeat=len(defects)):
        wrong = {name for name, is_wrong in zip(defects, chosen, strict=True) if is_wrong}
        valid = {"api-version": "2018-02-01", "resource": "r"}
        response = read(
            "&".join(f"{name}={value}" for name, value in valid.items() if name not in wrong),
            headers=(
                *(() if "header" in wrong else HEADER),
                ("host", "evil.example" if "host name" in wrong else "127.0.0.1"),
            ),
            rules=EndpointRules(gives_tokens="loopback" not in wrong),
        )
        first = next((name for name in defects if name in wrong), None)
        if first is None:
            assert response == TokenRequest(resource="r")
        else:
            assert first in oauth_error(response)[2]


def test_the_token_response_has_the_fields_that_azures_clients_read() -> None:
    """All values are strings, and times are in real time (spec §12)."""
    response = token_response(TOKEN, request=TokenRequest(resource=ARM), identity=IDENTITY, now=1_700_000_001)
    assert response.status == 200
    assert response.headers == (
        ("Content-Type", "application/json; charset=utf-8"),
        ("Cache-Control", "no-store"),
    )
    assert json.loads(response.body) == {
        "access_token": "head.body.sign",
        "client_id": IDENTITY.client_id,
        "expires_in": "3599",
        "expires_on": "1700003600",
        "ext_expires_in": "3599",
        "not_before": "1700000000",
        "resource": ARM,
        "token_type": "Bearer",
    }


def test_an_expired_token_expires_in_0_seconds() -> None:
    response = token_response(TOKEN, request=TokenRequest(resource=ARM), identity=IDENTITY, now=1_800_000_000)
    assert json.loads(response.body)["expires_in"] == "0"


def test_the_repr_of_a_token_does_not_contain_the_secret() -> None:
    assert TOKEN.text not in repr(TOKEN)


def test_the_error_for_an_unknown_resource_lists_the_accepted_ones() -> None:
    refusal = WrongResource(accepted=("https://management.azure.com", "https://localhost:8443"))
    response = token_response(
        refusal, request=TokenRequest(resource="https://vault.azure.net"), identity=IDENTITY, now=0
    )
    assert oauth_error(response) == (
        400,
        "invalid_resource",
        "Nobody here takes a token for 'https://vault.azure.net': "
        "ask for one of https://management.azure.com, https://localhost:8443",
    )


def test_a_service_without_a_console_accepts_no_resource() -> None:
    response = token_response(
        WrongResource(accepted=()), request=TokenRequest(resource=f"{'x' * 200}"), identity=IDENTITY, now=0
    )
    status, error, reason = oauth_error(response)
    assert (status, error) == (400, "invalid_resource")
    assert reason == f"Nobody here takes a token for '{'x' * 100}…': the service has no API for VMs"


def test_an_identity_of_another_vm_is_not_found() -> None:
    assert oauth_error(identity_not_found()) == (400, "invalid_request", "Identity not found")


def test_every_id_that_a_request_names_must_match_the_identity() -> None:
    own = {"client_id": IDENTITY.client_id, "object_id": IDENTITY.object_id, "resource_id": RESOURCE_ID}
    for variants in product([None, "own", "upper case", "foreign"], repeat=3):
        spelling: dict[str, Callable[[str], str]] = {
            "own": str,
            "upper case": str.upper,
            "foreign": lambda text: f"{text}0",
        }
        named = {name: spelling[variant](own[name]) for name, variant in zip(own, variants, strict=True) if variant}
        assert IDENTITY.matches(TokenRequest(resource=ARM, **named)) is ("foreign" not in variants), named


def test_a_vm_created_again_under_its_name_has_another_identity() -> None:
    def identity(vm_id: str) -> ManagedIdentity:
        return ManagedIdentity(vm="s/rg/web-0", vm_id=vm_id, name="web-0", resource_id=RESOURCE_ID)

    ids = {identity("a").client_id, identity("a").object_id, identity("b").client_id, identity("b").object_id}
    assert len(ids) == 4
    assert identity("a").client_id == identity("A").client_id


def test_the_ids_of_an_identity_never_change() -> None:
    """Grants and settings of clients contain them."""
    assert IDENTITY.client_id == "08d8aa58-549f-5b71-aed5-01460ba9794e"
    assert IDENTITY.object_id == "0b12e39e-3620-51af-863b-daa7617232d4"


@given(st.text(max_size=300), st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_the_response_is_json_for_every_resource(resource: str, text: str) -> None:
    request = TokenRequest(resource=resource, client_id=text)
    for token in (TOKEN, WrongResource(accepted=(text,))):
        json.loads(token_response(token, request=request, identity=IDENTITY, now=0).body)
