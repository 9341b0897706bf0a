"""The definition of a VM that moves live is written while QEMU starts on the destination."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.errors import Refused
from forewarn.hypervisor.machines.driver import MachineState
from forewarn.hypervisor.qemu.driver import QemuDriver
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
