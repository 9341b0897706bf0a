"""Discovery of Azure clients before they sign in: addresses, and where to sign in."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import TokenIssuer
from tests.support.oidc_issuer import LOOPBACK_CLIENT

BASE = "https://localhost:8443"
OTHER = {"host": "console.example.org"}


@pytest.fixture
def issuer(signing_key: Any) -> TokenIssuer:
    return TokenIssuer(f"{BASE}/adfs", signing_key, audiences=[BASE])


@pytest.fixture
def open_arm(arm_of: Any, issuer: TokenIssuer) -> Any:
    """An ARM facade with sign-in."""
    return arm_of(sign_in=TokenService(issuer=issuer, tenant_id="t-1"))


def test_the_cloud_metadata_has_the_keys_of_the_2022_and_2015_formats(open_arm: Any) -> None:
    assert open_arm.get("/metadata/endpoints?api-version=2022-09-01") == {
        "name": "forewarn",
        "resourceManager": BASE,
        "authentication": {
            "loginEndpoint": f"{BASE}/adfs",
            "audiences": [f"{BASE}/", "https://management.azure.com/", "https://management.core.windows.net/"],
            "tenant": "t-1",
            "identityProvider": "ADFS",
        },
        "suffixes": {},
        **dict.fromkeys(("portal", "graph", "graphAudience", "gallery"), f"{BASE}/"),
        **dict.fromkeys(("portalEndpoint", "graphEndpoint", "galleryEndpoint"), f"{BASE}/"),
    }


def test_the_cloud_metadata_is_also_served_as_a_list(open_arm: Any) -> None:
    assert open_arm.get("/metadata/endpoints-list") == [open_arm.get("/metadata/endpoints?api-version=2015-01-01")]


@pytest.mark.parametrize("path", ["//metadata/endpoints", "/metadata/endpoints/", "/Metadata/Endpoints"])
def test_the_metadata_path_is_matched_in_every_spelling(open_arm: Any, path: str) -> None:
    assert open_arm.get(path)["resourceManager"] == BASE


def test_metadata_addresses_use_the_host_that_the_client_called(open_arm: Any) -> None:
    cloud = open_arm.call("GET", "/metadata/endpoints", headers=OTHER).json
    assert cloud["resourceManager"] == "https://console.example.org"
    assert cloud["authentication"]["loginEndpoint"] == "https://console.example.org/adfs"
    # A token for a name that the service does not have would be rejected.
    assert cloud["authentication"]["audiences"][0] == "https://management.azure.com/"


@pytest.mark.parametrize(
    ("path", "token_endpoint"),
    [
        ("/adfs", "adfs/oauth2/token"),
        ("/11111111-2222-3333-4444-555555555555/v2.0", "11111111-2222-3333-4444-555555555555/oauth2/v2.0/token"),
        ("/adfs/shop.example.org/v2.0", "adfs/oauth2/token"),
    ],
)
def test_the_openid_configuration_exists_for_both_kinds_of_authority(
    open_arm: Any, path: str, token_endpoint: str
) -> None:
    shown = open_arm.get(f"{path}/.well-known/openid-configuration")
    assert shown["token_endpoint"] == f"{BASE}/{token_endpoint}"
    assert shown["issuer"] == f"{BASE}/adfs"
    assert shown["jwks_uri"] == f"{BASE}/adfs/discovery/keys"
    assert shown["authorization_endpoint"].startswith(BASE)


def test_the_published_signing_keys_are_public_keys(open_arm: Any, issuer: TokenIssuer) -> None:
    (key,) = open_arm.get("/adfs/discovery/keys")["keys"]
    assert key == issuer.jwks()["keys"][0]
    assert set(key) == {"kty", "n", "e", "kid", "use", "alg"}


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("https://login.example.org/0b5c/v2.0", "https://login.example.org"),
        ("https://issuer.example.org/realms/shop", "https://issuer.example.org/realms/shop"),
    ],
)
def test_clients_are_sent_to_an_external_issuer(arm_of: Any, issuer: TokenIssuer, url: str, login: str) -> None:
    external = ExternalIssuer(url, ["api://forewarn", "api://other"], client=LOOPBACK_CLIENT)
    arm = arm_of(sign_in=TokenService(issuer=issuer, tenant_id="t-1", external=external))
    shown = arm.get("/metadata/endpoints")["authentication"]
    assert (shown["loginEndpoint"], shown["audiences"]) == (login, ["api://forewarn", "api://other"])


@pytest.mark.parametrize("path", ["/metadata/endpoints", "/adfs/.well-known/openid-configuration"])
def test_a_service_without_its_https_port_says_so(arm: Any, path: str) -> None:
    status, code, message = arm.refused("GET", path)
    assert (status, code) == (409, "OperationNotAllowed")
    assert "the setting 'api'" in message


def test_discovery_shows_nothing_of_the_fleet(open_arm: Any) -> None:
    (key,) = open_arm.call("GET", "/adfs/discovery/keys").json["keys"]
    assert set(key) == {"kty", "e", "n", "kid", "use", "alg"}  # random letters, which may contain any name
    shown = str(open_arm.call("GET", "/metadata/endpoints").json)
    for vm in open_arm.world.store.vms():
        assert vm.name not in shown
        assert vm.vm_id not in shown
