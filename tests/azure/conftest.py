"""Fixtures of the tests with Azure's own clients: one lab over TLS, and a VM of its own for each test.

The tests run in an environment that has the libraries (`make test-azure`), and are not collected elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from typing import Any

import pytest

from tests.azure.az_client import Az, json_of, login, run_az
from tests.support.namespaces import why_namespaces_are_unavailable
from tests.support.web_service import SUBSCRIPTION, WebService, open_web_service

collect_ignore_glob = [] if find_spec("azure") else ["test_sdk_*.py"]

SETS = ("pair", "whole", "lone", "gone", "profile", "policy", "approved", "more")
FLEXIBLE_SETS = ("flex", "flex-gone", "flex-az")
SETS_OF_AZ = ("az-pair", "az-profile", "az-whole", "az-image")
FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"

[[hosts]]
name = "host-{n}"
count = 8

[[vms]]
name = "web-{n}"
count = 40

[[hosts]]
name = "north-{n}"
count = 2
location = "northeurope"

[[vms]]
name = "north"
location = "northeurope"

[[vms]]
name = "spot-{n}"
count = 4
priority = "Spot"

[[vms]]
name = "many-{n}"
count = 110
resource_group = "many"

[[vms]]
name = "easy-{n}"
count = 6
auto_approve = ["restart", "redeploy"]
""" + "".join(f'\n[[scale_sets]]\nname = "{name}"\ncount = 3\n' for name in (*SETS, *SETS_OF_AZ))
FLEET += "".join(
    f'\n[[scale_sets]]\nname = "{name}"\ncount = 2\norchestration = "Flexible"\n' for name in FLEXIBLE_SETS
)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("namespaces") and (reason := why_namespaces_are_unavailable()):
        pytest.skip(f"this machine forbids namespaces: {reason}")


@pytest.fixture(scope="session")
def fleet() -> str:
    return FLEET


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebService]:
    with open_web_service(tmp_path_factory.mktemp("console"), fleet=FLEET) as running:
        yield running


@pytest.fixture(scope="session")
def names() -> dict[str, Iterator[int]]:
    return {"web": count(), "spot": count(), "easy": count()}


@pytest.fixture
def vm(names: dict[str, Iterator[int]]) -> str:
    """A VM that no other test uses."""
    return f"web-{next(names['web'])}"


@pytest.fixture
def spot_vm(names: dict[str, Iterator[int]]) -> str:
    return f"spot-{next(names['spot'])}"


@pytest.fixture
def easy_vm(names: dict[str, Iterator[int]]) -> str:
    """A VM whose restarts and redeploys need no approval."""
    return f"easy-{next(names['easy'])}"


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Sets the variables of a shell in this process."""

    def make(shell: dict[str, str]) -> None:
        for name in set(os.environ) - set(shell):
            monkeypatch.delenv(name)
        for name, text in shell.items():
            monkeypatch.setenv(name, text)

    return make


@pytest.fixture
def compute_of(enter: Callable[[dict[str, str]], None]) -> Iterator[Callable[..., Any]]:
    """A compute client, signed in as the administrator unless another credential is given, with these options."""
    from azure.identity import ClientSecretCredential
    from azure.mgmt.compute import ComputeManagementClient

    with ExitStack() as stack:

        def make(console: WebService, credential: Any = None, **options: Any) -> Any:
            if credential is None:
                enter(console.trusting_environment)
                credential = ClientSecretCredential("adfs", *console.admin_credentials, authority=console.base_url)
            known = stack.enter_context(credential)
            client = ComputeManagementClient(known, SUBSCRIPTION, base_url=console.base_url, **options)
            return stack.enter_context(client)

        yield make


@pytest.fixture
def compute(console: WebService, compute_of: Callable[..., Any]) -> Any:
    return compute_of(console)


@pytest.fixture
def maintenance(console: WebService, enter: Callable[[dict[str, str]], None]) -> Iterator[Any]:
    """A client of Microsoft.Maintenance, signed in as the administrator."""
    from azure.identity import ClientSecretCredential
    from azure.mgmt.maintenance import MaintenanceManagementClient

    enter(console.trusting_environment)
    with (
        ClientSecretCredential("adfs", *console.admin_credentials, authority=console.base_url) as credential,
        MaintenanceManagementClient(credential, SUBSCRIPTION, base_url=console.base_url) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def registered(console: WebService, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A shell where the cloud is registered and the administrator signed in."""
    shell = console.trusting_environment | {"AZURE_CONFIG_DIR": str(tmp_path_factory.mktemp("az"))}
    json_of(run_az(shell, "cloud", "register", "-n", "Local", "--endpoint-resource-manager", console.base_url))
    json_of(run_az(shell, "cloud", "set", "-n", "Local"))
    assert [found["id"] for found in json_of(run_az(shell, *login(console, *console.admin_credentials)))] == [
        SUBSCRIPTION
    ]
    return shell


@pytest.fixture
def az(registered: dict[str, str]) -> Az:
    return lambda *arguments: run_az(registered, *arguments)
