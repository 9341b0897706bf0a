"""The definition of a VM that moves live is written while QEMU starts on the destination."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.errors import Refused
from forewarn.machines.driver import MachineState
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.machines.qemu.processes import QemuInstance
from tests.support.fake_qemu_site import FIRST, SECOND, VM, FakeSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    site = FakeSite(tmp_path)
    yield site
    site.close()


def test_the_definition_is_complete_when_the_destination_is_ready(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define()
        await driver.power_on(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND, then_receives=True)
        assert await driver.state(SECOND, VM) is MachineState.OFF
        await driver.prepare_to_receive(SECOND, VM)
        assert site.path(SECOND, ".toml").read_bytes() == site.path(FIRST, ".toml").read_bytes()
        assert await driver.state(SECOND, VM) is MachineState.RECEIVING

    site.run(scenario)


def test_the_definition_of_a_vm_that_is_off_is_complete_at_once(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define()
        await driver.copy_definition(FIRST, VM, SECOND, then_receives=True)
        assert site.path(SECOND, ".toml").exists()

    site.run(scenario)


def test_a_destination_whose_directory_cannot_be_written_is_refused_and_keeps_no_vm(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define()
        await driver.power_on(FIRST, VM)
        site.path(SECOND, ".toml.new").mkdir()
        await driver.copy_definition(FIRST, VM, SECOND, then_receives=True)
        with pytest.raises(Refused, match=r"file '.*web-0.toml' cannot be written"):
            await driver.prepare_to_receive(SECOND, VM)
        await driver.power_off(SECOND, VM)
        assert await driver.state(SECOND, VM) is MachineState.ABSENT
        assert await driver.state(FIRST, VM) is MachineState.RUNNING

    site.run(scenario)


def test_the_next_operation_on_the_vm_waits_for_its_definition(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define()
        await driver.power_on(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND, then_receives=True)
        await driver.remove(SECOND, VM, delete_disks=False)
        assert await driver.state(SECOND, VM) is MachineState.ABSENT
        assert not site.path(SECOND, ".toml").exists()

    site.run(scenario)


def lose_definition(site: FakeSite) -> None:
    """Leave the destination as a service leaves it that is killed while it writes the definition."""
    site.path(SECOND, ".toml").rename(site.path(SECOND, ".toml.new"))


def test_a_destination_whose_definition_was_not_written_is_ended_and_prepared_again(site: FakeSite) -> None:
    async def until_killed(driver: QemuDriver) -> None:
        site.define()
        await driver.power_on(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND, then_receives=True)
        await driver.prepare_to_receive(SECOND, VM)

    async def afterwards(driver: QemuDriver) -> None:
        assert await driver.state(SECOND, VM) is MachineState.ABSENT
        assert not QemuInstance(SECOND, VM, site.directory / SECOND).is_alive()
        await driver.copy_definition(FIRST, VM, SECOND, then_receives=True)
        await driver.prepare_to_receive(SECOND, VM)
        await driver.send(FIRST, VM, SECOND)
        while await driver.state(SECOND, VM) is not MachineState.RECEIVED:
            await asyncio.sleep(0.01)
        await driver.resume(SECOND, VM)
        assert list(await driver.observe(SECOND)) == [VM]
        assert site.path(SECOND, ".toml").read_bytes() == site.path(FIRST, ".toml").read_bytes()

    site.run(until_killed)
    lose_definition(site)
    site.run(lambda driver: asyncio.wait_for(afterwards(driver), 60))


@pytest.mark.parametrize("operation", ["copy_definition", "prepare_to_receive", "remove"])
def test_every_operation_ends_a_destination_whose_definition_was_not_written(site: FakeSite, operation: str) -> None:
    async def until_killed(driver: QemuDriver) -> None:
        site.define()
        await driver.power_on(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND)
        await driver.prepare_to_receive(SECOND, VM)

    async def afterwards(driver: QemuDriver) -> None:
        match operation:
            case "copy_definition":
                await driver.copy_definition(FIRST, VM, SECOND)
                assert await driver.state(SECOND, VM) is MachineState.OFF
            case "prepare_to_receive":
                with pytest.raises(Refused, match="there is no file"):
                    await driver.prepare_to_receive(SECOND, VM)
            case _:
                await driver.remove(SECOND, VM, delete_disks=False)
        assert not QemuInstance(SECOND, VM, site.directory / SECOND).is_alive()
        assert await driver.state(FIRST, VM) is MachineState.RUNNING

    site.run(until_killed)
    lose_definition(site)
    site.run(afterwards)


def test_a_destination_to_which_a_guest_is_being_sent_is_not_ended_although_its_definition_is_gone(
    site: FakeSite,
) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define()
        await driver.power_on(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND)
        await driver.prepare_to_receive(SECOND, VM)
        lose_definition(site)
        with socket.socket(socket.AF_UNIX) as sender:
            sender.connect(str(site.path(SECOND, ".migrate")))
            async with driver._running(SECOND, VM, "looked at") as (_, monitor):
                while "status" not in await monitor.execute("query-migrate"):
                    await asyncio.sleep(0.01)
            assert await driver.state(SECOND, VM) is MachineState.RECEIVING
            sender.sendall(b"running")
            while await driver.state(SECOND, VM) is not MachineState.RECEIVED:
                await asyncio.sleep(0.01)

    site.run(lambda driver: asyncio.wait_for(scenario(driver), 60))


def test_an_older_definition_is_replaced_before_the_destination_starts(site: FakeSite) -> None:
    """Otherwise a service that is killed in between leaves QEMU beside the file of another definition."""

    async def scenario(driver: QemuDriver) -> None:
        site.define(SECOND, "-deaf")
        site.define()
        await driver.power_on(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND, then_receives=True)
        assert site.path(SECOND, ".toml").read_bytes() == site.path(FIRST, ".toml").read_bytes()

    site.run(scenario)
