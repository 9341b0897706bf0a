"""VMs are identified by the network (spec §2.1, §7.4)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forewarn.metadata import LabListenMode, open_lab_listeners, open_network_listener
from forewarn.metadata.identity import Caller, IdentityKind
from forewarn.metadata.responder import UnknownCallerLog
from tests.metadata.conftest import RunScenario, World

NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
PREVIEW = b"GET /metadata/scheduledevents?api-version=2017-03-01 HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("mode", list(LabListenMode), ids=lambda mode: mode.name)
def test_a_lab_identifies_vms_in_every_listen_mode(run_scenario: RunScenario, mode: LabListenMode) -> None:
    async def scenario(world: World) -> None:
        lab = open_lab_listeners(lambda: ["127.0.8.1", "127.0.8.2"], 0, modes=[mode])
        for address, vm in (("127.0.8.1", "a"), ("127.0.8.2", "b")):
            world.callers.assign(lab.attachment(address), vm)
        await world.server.start([lab.listener])
        assert await name_at(world, *lab.endpoint("127.0.8.1")) == "a"
        assert await name_at(world, *lab.endpoint("127.0.8.2")) == "b"

    run_scenario(scenario)


@pytest.mark.parametrize("mode", list(LabListenMode), ids=lambda mode: mode.name)
def test_a_vm_added_to_a_running_lab_is_served(run_scenario: RunScenario, mode: LabListenMode) -> None:
    async def scenario(world: World) -> None:
        lab = open_lab_listeners(lambda: ["127.0.8.1"], 0, modes=[mode])
        await world.server.start([lab.listener])
        more = lab.add_address("127.0.8.5")
        await world.server.start([more] if more else [])
        world.callers.assign(lab.attachment("127.0.8.5"), "other")
        assert await name_at(world, *lab.endpoint("127.0.8.5")) == "other"
        assert lab.add_address("127.0.8.5") is None

    run_scenario(scenario)


def test_a_network_listener_identifies_vms_by_source_address(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        listener = open_network_listener("127.0.0.1", 0, network="green")
        await world.server.start([listener])
        world.callers.assign("green/127.0.9.1", "a")
        world.callers.assign("127.0.9.2", "b")
        port = listener.sockets[0].getsockname()[1]
        assert await name_at(world, "127.0.0.1", port, local="127.0.9.1") == "a"
        # This address is assigned on another network only.
        assert await name_at(world, "127.0.0.1", port, local="127.0.9.2") == '{ "error": "Not found" }'

    run_scenario(scenario)


def test_an_open_connection_does_not_follow_a_reassigned_attachment(run_scenario: RunScenario) -> None:
    """Spec §7.4: the client of an open connection is not the new VM."""

    async def scenario(world: World) -> None:
        client = await world.connect("a")
        assert (await client.ask(NAME)).body == b"a"
        world.callers.assign(world.lab.attachment("127.0.7.1"), "other")
        assert (await client.ask(NAME)).status == 404
        assert await client.is_closed()
        assert (await world.ask(NAME, vm="a")).body == b"other"
        world.callers.release(world.lab.attachment("127.0.7.1"))
        assert (await world.ask(NAME, vm="a")).status == 404

    run_scenario(scenario)


@pytest.mark.parametrize(("is_loopback", "status"), [(True, 200), (False, 400)])
def test_the_preview_requires_the_metadata_header_off_loopback(
    run_scenario: RunScenario, is_loopback: bool, status: int
) -> None:
    """Spec §2.2: required by default on every listener that is not loopback."""

    async def scenario(world: World) -> None:
        loopback = open_network_listener("127.0.0.1", 0)
        listener = replace(loopback, is_loopback=is_loopback)
        await world.server.start([listener])
        world.callers.assign("127.0.9.1", "a")
        client = await world.dial("127.0.0.1", loopback.sockets[0].getsockname()[1], local="127.0.9.1")
        client.send(PREVIEW)
        assert (await client.reply()).status == status

    run_scenario(scenario)


def test_headers_do_not_change_the_identity_of_a_vm(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        reply = await world.ask(
            "/metadata/instance?api-version=2021-02-01", vm="b", Host="127.0.7.1", X_Real_IP="127.0.7.1"
        )
        assert json.loads(reply.body)["compute"]["name"] == "b"

    run_scenario(scenario)


async def name_at(world: World, host: str, port: int, local: str = "") -> str:
    client = await world.dial(host, port, local=local)
    return (await client.ask(NAME)).body.decode()


def test_an_unknown_caller_is_logged_once_a_minute(run_scenario: RunScenario, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            assert (await world.ask(vm="unknown")).status == 404
        assert (await world.ask(vm="a")).status == 200
        assert logged(caplog) == ["a request from 127.0.7.9 got 404: no VM of the fleet is there"]
        client = await world.connect("other")
        world.backend.drop_scope("single")
        assert (await client.ask()).status == 404
        assert logged(caplog)[1:] == ["a request from 127.0.7.3 got 404: VM other is no longer there"]

    run_scenario(scenario)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "forewarn.metadata.responder"]


def test_the_log_of_unknown_callers_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    unknown_callers = UnknownCallerLog(max_callers=3)

    def record(place: str, at: float) -> None:
        unknown_callers.record(Caller(attachment=place, vm=None, is_loopback=False), at)

    for second in range(59):
        for place in ("a", "b", "", *(f"flood-{second}-{number}" for number in range(20))):
            record(place, 1000.0 + second)
    assert [message.partition(" got")[0] for message in logged(caplog)] == [
        "a request from a",
        "a request from b",
        "a request from an unknown address",
        "more than 3 unknown callers in a minute: the others are not logged",
    ]
    caplog.clear()
    record("b", 1060.0)
    record("flood", 1060.0)
    assert len(logged(caplog)) == 2


def test_the_names_of_identity_kinds_never_change() -> None:
    """They are values of `GET /service`."""
    assert set(IdentityKind) == {"CalledAddress", "SourceAddress", "PerPort", "Fixed", "BoundDevice", "Mark"}
