"""Sign-in of the Python library with every credential that Azure documents for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.identity import ClientSecretCredential, DefaultAzureCredential, ManagedIdentityCredential

from tests.support.web_service import WebService, open_web_service

pytestmark = pytest.mark.azure
GROUP = "shop"
Enter = Callable[[dict[str, str]], None]
ComputeOf = Callable[..., Any]


def names(compute: Any) -> set[str]:
    return {vm.name for vm in compute.virtual_machines.list(GROUP)}


def inside(console: WebService, vm: str) -> dict[str, str]:
    """The environment of a program that uses the metadata address of this VM."""
    at = console.service.endpoint(vm)
    return console.trusting_environment | {"AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{at.address}:{at.port}"}


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, fleet: str) -> Iterator[WebService]:
    """A lab where any caller of a VM's loopback address may get its identity."""
    data = tmp_path_factory.mktemp("trusting")
    with open_web_service(data, fleet=fleet, identity_on_loopback="true") as running:
        yield running


def test_a_client_signs_in_with_its_secret_at_an_authority_that_ends_in_adfs(compute: Any) -> None:
    assert "web-0" in names(compute)


def test_a_client_signs_in_with_its_secret_and_a_tenant(
    console: WebService, enter: Enter, compute_of: ComputeOf
) -> None:
    enter(console.trusting_environment)
    known = {"authority": console.base_url, "disable_instance_discovery": True}
    credential = ClientSecretCredential(console.console_info["tenant_id"], *console.admin_credentials, **known)
    assert "web-0" in names(compute_of(console, credential))


def test_the_default_credential_signs_in_with_the_output_of_forewarn_env(
    console: WebService, enter: Enter, compute_of: ComputeOf
) -> None:
    enter(console.environment("--with-secret"))
    assert "web-0" in names(compute_of(console, DefaultAzureCredential()))


def test_a_wrong_secret_is_rejected_with_a_message(console: WebService, enter: Enter, compute_of: ComputeOf) -> None:
    enter(console.trusting_environment)
    client_id, _ = console.admin_credentials
    credential = ClientSecretCredential("adfs", client_id, "guessed", authority=console.base_url)
    with pytest.raises(ClientAuthenticationError, match="AADSTS7000215"):
        names(compute_of(console, credential))


def test_a_managed_identity_may_do_nothing_until_it_is_granted_a_role(
    trusting: WebService, enter: Enter, compute_of: ComputeOf
) -> None:
    enter(inside(trusting, "web-0"))
    compute = compute_of(trusting, ManagedIdentityCredential())
    with pytest.raises(HttpResponseError, match="AuthorizationFailed") as refused:
        compute.virtual_machines.begin_restart(GROUP, "web-1")
    assert refused.value.status_code == 403

    trusting.grant("Operator", to="web-0", over="web-1")
    poller = compute.virtual_machines.begin_restart(GROUP, "web-1")
    trusting.approve_until_over("web-1", poller.done)
    assert poller.status() == "Succeeded"
    with pytest.raises(HttpResponseError, match="AuthorizationFailed"):
        compute.virtual_machines.begin_restart(GROUP, "web-2")


def test_the_default_credential_finds_the_identity_of_the_vm_it_runs_in(
    trusting: WebService, enter: Enter, compute_of: ComputeOf
) -> None:
    trusting.grant("Reader", to="web-5", over="web-6")
    enter(inside(trusting, "web-5"))
    compute = compute_of(trusting, DefaultAzureCredential())
    assert names(compute) == {"web-6"}


def test_an_identity_is_refused_on_loopback_unless_a_setting_allows_it(console: WebService, enter: Enter) -> None:
    enter(inside(console, "web-0"))
    with ManagedIdentityCredential() as credential, pytest.raises(ClientAuthenticationError) as refused:
        credential.get_token("https://management.azure.com/.default")
    assert "identity_on_loopback" in str(refused.value)


def test_no_secret_and_no_token_is_written_anywhere(console: WebService, enter: Enter, compute_of: ComputeOf) -> None:
    enter(console.trusting_environment)
    client_id, secret = console.new_client("Reader")
    credential = ClientSecretCredential("adfs", client_id, secret, authority=console.base_url)
    names(compute_of(console, credential))
    token = credential.get_token("https://management.azure.com/.default").token

    kept = [path for path in console.service.data.rglob("*") if path.is_file()]
    assert console.service.data / "service.log" in kept
    for path in kept:
        written = path.read_bytes()
        assert secret.encode() not in written, path
        assert token.encode() not in written, path
