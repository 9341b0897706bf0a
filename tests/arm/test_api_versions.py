"""api-versions: any is accepted, unless the service has `strict_api_versions`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.arm.test_updates import AUTOMATIC, COMPUTE, DB, POOL, notice, of_set, of_vm, update


@pytest.fixture
def strict(arm_of: Callable[..., Any], api_of: Callable[..., Any]) -> Any:
    """A service with `strict_api_versions`."""
    api = api_of()
    api.dependencies = replace(api.dependencies, strict_api_versions=True)
    return type(arm_of())(api)


def test_any_api_version_and_none_are_accepted(arm: Any) -> None:
    for version in ("", "?api-version=", "?api-version=1999-01-01", "?api-version=nonsense"):
        update(arm, "PATCH", f"{DB}{version}", of_vm(**notice()))


@pytest.mark.parametrize(
    ("target", "version"),
    [
        (DB, "2026-04-01"),
        (POOL, "2022-11-01"),
        (f"{COMPUTE}/virtualMachines", "2024-07-01"),
        ("/subscriptions", "2022-12-01"),
        ("/subscriptions/sub/resourceGroups", "2024-11-01"),
    ],
)
def test_a_strict_service_accepts_the_versions_that_clients_send(strict: Any, target: str, version: str) -> None:
    strict.get(f"{target}?api-version={version}")
    assert strict.refused("GET", target)[:2] == (400, "MissingApiVersionParameter")
    status, code, message = strict.refused("GET", f"{target}?api-version=2020-02-30")
    assert (status, code) == (400, "InvalidApiVersionParameter")
    assert "2024-11-01" in message


def test_a_strict_service_has_versions_for_each_provider(strict: Any) -> None:
    approve = f"{DB}/providers/Microsoft.Maintenance/scheduledevents/x/acknowledge"
    assert strict.refused("POST", f"{approve}?api-version=2025-11-01")[1] == "ResourceNotFound"
    assert strict.refused("POST", f"{approve}?api-version=2024-07-01")[1] == "InvalidApiVersionParameter"


def test_a_strict_service_rejects_members_newer_than_the_version(strict: Any) -> None:
    status, code, message = strict.refused("PATCH", f"{POOL}?api-version=2018-10-01", of_set(**notice()))
    assert (status, code) == (400, "BadRequest")
    assert message.startswith(
        "Could not find member 'scheduledEventsProfile' on object of type 'VirtualMachineProfile'"
    )
    update(strict, "PATCH", f"{POOL}?api-version=2019-03-01", of_set(**notice()))
    policy = of_vm(scheduledEventsPolicy=AUTOMATIC)
    assert strict.refused("PATCH", f"{DB}?api-version=2023-09-01", policy)[:2] == (400, "BadRequest")
    update(strict, "PATCH", f"{DB}?api-version=2024-03-01", policy)


def test_our_own_api_needs_no_api_version_in_strict_mode(strict: Any) -> None:
    strict.get("/forewarn/v1/fleet")
