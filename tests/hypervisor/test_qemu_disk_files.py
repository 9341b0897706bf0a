"""Disk files of QEMU VMs: replaced as a whole or not at all, and by no thread that outlives its act."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.interface import ActNotTried
from forewarn.machines.qemu.disks import DiskFileJobs
from forewarn.machines.qemu.driver import QemuDefinitionCopies
from forewarn.machines.qemu.processes import QemuInstance

_ENDLESS = 1 << 42  # 4 TiB of zeros without blocks: reading them takes an hour


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return tmp_path / "image.raw"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    disk = tmp_path / "disk.raw"
    disk.write_text("what the guest wrote")
    return disk


def is_copying(disk: Path) -> bool:
    return disk.with_name("disk.raw.new").exists()


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_copy_has_the_data_and_the_holes_of_its_image(image: Path, disk: Path) -> None:
    hole = 64 << 20
    with image.open("wb") as file:
        file.write(b"boot sector")
        file.seek(hole)
        file.write(b"more" * 3_000_000)
        file.truncate(2 * hole)

    asyncio.run(DiskFileJobs().copy_disk(image, disk))
    assert disk.stat().st_size == 2 * hole
    assert disk.read_bytes() == image.read_bytes()
    assert disk.stat().st_blocks * 512 < hole


def test_a_copy_ends_with_the_act_that_asked_for_it_and_leaves_the_disk_as_it_was(image: Path, disk: Path) -> None:
    with image.open("wb") as file:
        file.truncate(_ENDLESS)

    async def scenario() -> None:
        jobs = DiskFileJobs()
        copying = asyncio.create_task(jobs.copy_disk(image, disk))
        await wait_until(lambda: is_copying(disk))
        copying.cancel()
        copying.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait({copying})
        assert copying.cancelled()
        assert not is_copying(disk)  # its thread has ended, so it will not replace the disk later
        assert disk.read_text() == "what the guest wrote"
        await jobs.close()

    asyncio.run(scenario())


def test_a_copy_ends_when_the_driver_is_closed_and_none_begins_later(image: Path, disk: Path) -> None:
    with image.open("wb") as file:
        file.truncate(_ENDLESS)

    async def scenario() -> None:
        jobs = DiskFileJobs()
        copying = asyncio.create_task(jobs.copy_disk(image, disk))
        await wait_until(lambda: is_copying(disk))
        async with asyncio.timeout(60):
            await jobs.close()
        assert not is_copying(disk)
        with pytest.raises(HostUnreachable, match="was left as it is"):
            await copying
        with pytest.raises(HostUnreachable, match="is closed"):
            await jobs.make_empty_disk(disk, 1)
        assert disk.read_text() == "what the guest wrote"

    asyncio.run(scenario())


def test_a_disk_that_cannot_be_made_is_refused_and_stays_as_it_is(image: Path, disk: Path) -> None:
    async def scenario() -> None:
        jobs = DiskFileJobs()
        with pytest.raises(Refused, match=r"cannot be copied to .*: No such file"):
            await jobs.copy_disk(image, disk)
        with pytest.raises(Refused, match="is not a file: an image can only be copied over a file"):
            await jobs.copy_disk(image, disk.parent)
        with pytest.raises(Refused, match="cannot be created: No such file"):
            await jobs.make_empty_disk(disk.parent / "missing" / "disk.raw", 1)
        await jobs.make_empty_disk(disk.parent / "new.raw", 1)

    asyncio.run(scenario())
    assert disk.read_text() == "what the guest wrote"
    assert (disk.parent / "new.raw").read_bytes() == bytes(1 << 20)


def test_a_full_disk_is_no_attempt_and_leaves_the_files_as_they_were(image: Path, disk: Path, tmp_path: Path) -> None:
    image.write_text("boot sector")
    host, copies = tmp_path / "h1", tmp_path / "copies"
    host.mkdir()
    (host / "web-0.toml").write_text("memory_mib = 64")
    copies.mkdir()
    for file in (disk, copies / "web-0.toml"):
        file.with_name(f"{file.name}.new").symlink_to("/dev/full")
    with pytest.raises(ActNotTried):
        asyncio.run(DiskFileJobs().copy_disk(image, disk))
    assert disk.read_text() == "what the guest wrote"
    with pytest.raises(ActNotTried):
        QemuDefinitionCopies(copies).keep(QemuInstance("h1", "web-0", host))
    assert not (copies / "web-0.toml").exists()
