"""Tokens of VMs' managed identities, from a service's own issuer (spec §2.8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forewarn.auth.token_service import TokenService, VmTokens
from forewarn.auth.tokens import SigningKey, TokenIssuer
from forewarn.base.clock import read_real_time
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource
from tests.support.service_process import ServiceProcess, free_port

URL = "https://localhost:8443"
ARM = "https://management.azure.com"
IDENTITY = ManagedIdentity(vm="s/rg/web-0", vm_id="ID-1", name="web-0", resource_id="/subscriptions/s/web-0")
FLEET = '[[hosts]]\nname = "host-0"\n\n[[vms]]\nname = "web-0"\n'
ASK = f"/metadata/identity/oauth2/token?api-version=2018-02-01&resource={ARM}"


@pytest.fixture(scope="module")
def token_service(tmp_path_factory: pytest.TempPathFactory) -> TokenService:
    key = SigningKey.load_or_create(tmp_path_factory.mktemp("keys") / "token.key")
    return TokenService(issuer=TokenIssuer(f"{URL}/adfs", key, audiences=[URL]), tenant_id="t")


def token_for(
    tokens: VmTokens, resource: str, identity: ManagedIdentity = IDENTITY
) -> ManagedIdentityToken | WrongResource:
    return asyncio.run(tokens.token(identity, resource))


@pytest.mark.parametrize("resource", [ARM, f"{ARM}/", "https://management.core.windows.net/", URL, f"{URL}/"])
def test_the_token_of_a_vm_identifies_the_vm(token_service: TokenService, resource: str) -> None:
    token = token_for(VmTokens(token_service, URL), resource)
    assert isinstance(token, ManagedIdentityToken)
    claims = asyncio.run(token_service.verify(token.text, read_real_time()))
    assert claims.ids == ("vm:id-1",)
    assert (claims.vm_key, claims.vm_id, claims.tenant) == ("s/rg/web-0", "ID-1", "t")
    assert (claims.expires_at, token.expires_at - token.not_before) == (token.expires_at, 3600)


def test_every_spelling_of_a_resource_gives_the_same_token(token_service: TokenService) -> None:
    """Signing takes time, so a client must not cause more of it by varying the spelling."""
    tokens = VmTokens(token_service, URL)
    spellings = (ARM, f"{ARM}/", f"{ARM}//", ARM.upper().replace("HTTPS", "https"))
    assert len({token_for(tokens, spelling) for spelling in spellings}) == 1


def test_two_vms_never_have_the_same_token(token_service: TokenService) -> None:
    """A VM that was deleted and added again under its name gets other tokens, too."""
    back = ManagedIdentity(vm=IDENTITY.vm, vm_id="ID-2", name=IDENTITY.name, resource_id=IDENTITY.resource_id)
    token, another = token_for(VmTokens(token_service, URL), ARM), token_for(VmTokens(token_service, URL), ARM, back)
    assert isinstance(token, ManagedIdentityToken)
    assert isinstance(another, ManagedIdentityToken)
    assert token.text != another.text
    assert asyncio.run(token_service.verify(another.text, read_real_time())).ids == ("vm:id-2",)


@pytest.mark.parametrize("resource", ["https://vault.azure.net", "", "x", f"{URL}0", "https://["])
def test_a_vm_gets_no_token_for_other_resources(token_service: TokenService, resource: str) -> None:
    accepted = (ARM, "https://management.core.windows.net", URL)
    assert token_for(VmTokens(token_service, URL), resource) == WrongResource(accepted=accepted)


def test_a_service_without_an_api_port_issues_no_tokens() -> None:
    assert token_for(VmTokens(), ARM) == WrongResource(accepted=())


def test_a_lab_issues_tokens_on_loopback_only_with_the_setting_and_logs_a_warning(tmp_path: Path) -> None:
    environment = {"FOREWARN_API": f"127.0.0.1:{free_port()}"}
    with ServiceProcess(data=tmp_path, fleet=FLEET, environment=environment) as service:
        assert service.guest("web-0", "GET", ASK).status == 403
        assert service.api("GET", "/service").json["identity_on_loopback"] is False
        assert "identity_on_loopback" not in service.log.read_text()
        service.stop()

    environment |= {"FOREWARN_IDENTITY_ON_LOOPBACK": "true"}
    with ServiceProcess(data=tmp_path, environment=environment) as service:
        answer = service.guest("web-0", "GET", ASK)
        assert (answer.status, answer.json["token_type"], answer.json["resource"]) == (200, "Bearer", ARM)
        assert service.api("GET", "/service").json["identity_on_loopback"] is True
        assert "every program on this machine can get the token of any VM" in service.log.read_text()
        again = service.guest("web-0", "GET", ASK)
        assert again.json["access_token"] == answer.json["access_token"]
        assert service.guest("web-0", "GET", f"{ASK}&client_id=other").status == 400
        assert answer.json["access_token"] not in service.log.read_text()
        assert answer.json["access_token"] not in service.api("GET", "/history").body.decode()
        service.stop()
