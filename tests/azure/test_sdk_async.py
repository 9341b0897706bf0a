"""The asynchronous Python library: a restart that a client approves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from azure.identity.aio import ClientSecretCredential
from azure.mgmt.compute.aio import ComputeManagementClient
from azure.mgmt.maintenance.aio import MaintenanceManagementClient

from tests.support.web_service import SUBSCRIPTION, WebService

pytestmark = pytest.mark.azure
GROUP = "shop"


def test_a_restart_is_requested_and_approved_by_a_client(
    console: WebService, enter: Callable[[dict[str, str]], None], vm: str
) -> None:
    enter(console.trusting_environment)
    asyncio.run(asyncio.wait_for(_restart(console, vm), 60))


async def _restart(console: WebService, vm: str) -> None:
    async with (
        ClientSecretCredential("adfs", *console.admin_credentials, authority=console.base_url) as credential,
        ComputeManagementClient(credential, SUBSCRIPTION, base_url=console.base_url) as compute,
        MaintenanceManagementClient(credential, SUBSCRIPTION, base_url=console.base_url) as maintenance,
    ):
        poller = await compute.virtual_machines.begin_restart(GROUP, vm)
        ending = asyncio.create_task(poller.result())
        (event_id,) = await asyncio.to_thread(console.scheduled_event_ids, vm)
        assert not poller.done()

        message = await maintenance.scheduled_events.acknowledge(GROUP, "virtualMachines", vm, event_id)
        assert message.value == "Successfully Approved"
        await asyncio.to_thread(console.service.advance, 300)
        await ending
        assert poller.status() == "Succeeded"


def test_every_vm_is_listed(console: WebService, enter: Callable[[dict[str, str]], None]) -> None:
    enter(console.trusting_environment)
    assert "easy-0" in asyncio.run(asyncio.wait_for(_list(console), 60))


async def _list(console: WebService) -> list[str]:
    async with (
        ClientSecretCredential("adfs", *console.admin_credentials, authority=console.base_url) as credential,
        ComputeManagementClient(credential, SUBSCRIPTION, base_url=console.base_url) as compute,
    ):
        return [vm.name async for vm in compute.virtual_machines.list(GROUP)]
