"""Listeners of real hosts identify VMs by the accepted socket; here on loopback (spec §2.1, §7.4)."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from forewarn.errors import Rejected
from forewarn.metadata import (
    IdentifyBy,
    ListenerManager,
    ListenerSpec,
    MarkIdentity,
    dedicated_attachment,
    listener_for_socket,
)
from tests.metadata.conftest import RunScenario, World
from tests.support.service_process import free_port

NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "SO_BINDTODEVICE"), reason="sockets are bound to devices on Linux only"
)


def spec_for(by: IdentifyBy = IdentifyBy.DEVICE, **fields: Any) -> ListenerSpec:
    return ListenerSpec(identify_by=by, address="127.0.0.1", port=free_port(), **fields)


async def name_at(world: World, port: int) -> bytes:
    return (await (await world.dial("127.0.0.1", port)).ask(NAME)).body


def test_a_vm_is_identified_by_the_device_of_its_connection(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        spec = spec_for(device="lo")
        (found,) = ListenerManager([spec]).open_all()
        assert found.listener is not None
        await world.server.start([found.listener])
        assert await name_at(world, spec.port) == b'{ "error": "Not found" }'
        world.callers.assign("device:/lo", "b")
        assert await name_at(world, spec.port) == b"b"
        await world.server.stop(found.listener)
        with pytest.raises(OSError):
            await world.dial("127.0.0.1", spec.port)

    run_scenario(scenario)


def test_a_connection_without_a_mark_is_an_unknown_caller(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        spec = spec_for(IdentifyBy.MARK, device="lo")
        sock = socket.create_server(("127.0.0.1", spec.port))
        await world.server.start([listener_for_socket(spec, sock)])
        world.callers.assign(MarkIdentity("lo").attachment_of(1), "a")
        assert await name_at(world, spec.port) == b'{ "error": "Not found" }'

    run_scenario(scenario)


def test_a_vm_is_identified_by_the_namespace_of_the_listener(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        spec = spec_for(IdentifyBy.NAMESPACE, namespace="tenant")
        sock = socket.create_server(("127.0.0.1", spec.port))
        await world.server.start([listener_for_socket(spec, sock)])
        world.callers.assign(dedicated_attachment("tenant"), "other")
        assert await name_at(world, spec.port) == b"other"

    run_scenario(scenario)


def test_open_listeners_stay_open_while_nothing_changes() -> None:
    manager = ListenerManager([spec_for(device="lo"), spec_for(IdentifyBy.SOURCE)])
    assert len(manager.open_all()) == 2
    assert manager.refresh() == []
    manager.close()


def test_a_port_in_use_closes_the_listeners_opened_before() -> None:
    first = spec_for(IdentifyBy.SOURCE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        second = ListenerSpec(identify_by=IdentifyBy.SOURCE, address="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(Rejected, match=f"cannot listen on {second.name}: {second.name} is in use by another"):
            ListenerManager([first, second]).open_all()
    listener = ListenerManager([first]).open_all()[0].listener
    assert listener is not None
    listener.close()


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (ListenerSpec(identify_by=IdentifyBy.DEVICE, device="tap0"), "169.254.169.254:80 by device tap0"),
        (
            ListenerSpec(identify_by=IdentifyBy.DEVICE, device="tap0", namespace="t"),
            "169.254.169.254:80 by device tap0 in t",
        ),
        (ListenerSpec(identify_by=IdentifyBy.MARK, device="br0"), "169.254.169.254:80 by mark on br0"),
        (ListenerSpec(identify_by=IdentifyBy.NAMESPACE, namespace="t"), "169.254.169.254:80 by namespace t"),
        (ListenerSpec(identify_by=IdentifyBy.SOURCE, address="fd00::1", port=81), "[fd00::1]:81"),
        (
            ListenerSpec(identify_by=IdentifyBy.SOURCE, device="br0", namespace="t"),
            "169.254.169.254:80 by source on br0 in t",
        ),
    ],
)
def test_the_name_of_a_listener_says_where_it_listens(spec: ListenerSpec, name: str) -> None:
    assert spec.name == name
