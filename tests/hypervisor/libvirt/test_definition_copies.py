"""Copies of VMs' definitions in the data directory: kept apart by name, and what a disk problem there leads to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from forewarn.errors import Refused
from forewarn.machines.driver import VmNeeds
from forewarn.machines.host_capacity import HostCapacityMonitor
from forewarn.machines.interface import ActNotTried
from forewarn.machines.libvirt.connection import LibvirtConnection, LibvirtHost
from forewarn.machines.libvirt.definition_copies import DefinitionCopies
from forewarn.machines.libvirt.definitions import copy_all_definitions
from forewarn.machines.libvirt.domain_state import MovedDomain
from forewarn.machines.libvirt.driver import LibvirtDriver
from forewarn.machines.libvirt.session import LibvirtSession
from tests.support.fake_libvirt import DEFINITION, FakeConnection, FakeDomain, FakeLibvirt, Moment


def test_copies_of_definitions_of_oddly_named_vms_stay_apart(tmp_path: Path) -> None:
    copies = DefinitionCopies(tmp_path / "definitions")
    names = ["web-1", "..", ".", "a/b", "a%2Fb", "Ä", "", "%"]
    for name in names:
        copies.save("host", name, f"<{name}>")
        copies.save(name, "vm", f"<host {name}>")
    assert [copies.load("host", name) for name in names] == [f"<{name}>" for name in names]
    assert [copies.load(name, "vm") for name in names] == [f"<host {name}>" for name in names]
    assert [path.name for path in tmp_path.iterdir()] == ["definitions"]
    copies.delete("host", "web-1")
    copies.delete("host", "web-1")
    assert copies.load("host", "web-1") is None


def test_a_copy_that_cannot_be_used_is_a_problem_of_this_machine_and_does_not_count_as_an_attempt(
    tmp_path: Path,
) -> None:
    copies = unusable_copies(tmp_path)
    for call in (
        lambda: copies.save("host", "web-1", DEFINITION),
        lambda: copies.load("host", "web-1"),
        lambda: copies.load_all("host"),
        lambda: copies.load_from_any_host("", "web-1"),
        lambda: copies.delete("host", "web-1"),
    ):
        with pytest.raises(ActNotTried, match=r"definitions.* of a VM's definition cannot be \w+ now \("):
            call()


def test_a_vm_whose_definition_cannot_be_copied_is_not_defined_anywhere_and_that_is_no_attempt(tmp_path: Path) -> None:
    unusable_copies(tmp_path)
    driver = LibvirtDriver({"b": LibvirtHost(uri="test:///none")}, tmp_path / "definitions")
    with pytest.raises(ActNotTried, match="cannot be read now"):
        asyncio.run(driver.define("b", "web-1", msgspec.json.encode(MovedDomain(DEFINITION)), from_host="host"))


def test_a_host_whose_definitions_cannot_be_copied_is_left_again_and_tried_anew(tmp_path: Path) -> None:
    copies = unusable_copies(tmp_path)
    opened: list[FakeConnection] = []

    def connect(uri: str) -> LibvirtSession:
        opened.append(FakeConnection(FakeDomain([Moment(state=1)], [])))
        return LibvirtSession(FakeLibvirt(), opened[-1])

    async def scenario() -> None:
        connection = LibvirtConnection(
            "host",
            LibvirtHost(uri="test:///default"),
            on_open=lambda session: copy_all_definitions(copies, "host", session),
            connect=connect,
        )
        with pytest.raises(ActNotTried):
            await connection.session()
        assert [each.is_closed for each in opened] == [True]
        (tmp_path / "definitions" / "host" / "web-1.xml").rmdir()
        await connection.session()
        assert [each.is_closed for each in opened] == [True, False]
        assert copies.load("host", "web-1") == DEFINITION
        await connection.close()

    asyncio.run(scenario())


def test_copies_that_cannot_be_read_do_not_end_the_watching_of_capacity(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copies = DefinitionCopies(tmp_path / "definitions")
    copies.save("", "web-1", DEFINITION)
    broken = copies_file(tmp_path, "%", "web-2")
    broken.mkdir()

    async def scenario() -> None:
        monitor = HostCapacityMonitor(LibvirtDriver({}, tmp_path / "definitions"), interval_s=60)
        for _ in range(2):
            await monitor.refresh("")
        assert (monitor.vm_mib, monitor.silent_hosts) == ({}, frozenset())
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
            "what VMs on no host need is not known"
        ]
        broken.rmdir()
        await monitor.refresh("")
        assert monitor.vm_mib == {"web-1": 512}

    asyncio.run(scenario())


def test_a_vm_on_no_host_keeps_its_disks_and_definition_unless_they_are_to_be_deleted(tmp_path: Path) -> None:
    disk = "<devices><disk type='file' device='disk'><source file='/images/root.raw'/></disk></devices>"
    DefinitionCopies(tmp_path).save("", "web-1", DEFINITION.replace("</domain>", f"{disk}</domain>"))
    driver = LibvirtDriver({}, tmp_path)
    asyncio.run(driver.remove("", "web-1", delete_disks=False))
    assert asyncio.run(driver.kept_vms()) == {"web-1": VmNeeds(memory_mib=512)}
    with pytest.raises(Refused, match="the settings name no host that could delete its disks"):
        asyncio.run(driver.remove("", "web-1", delete_disks=True))


def copies_file(directory: Path, host: str, vm: str) -> Path:
    """Return the file of the copy for a VM on a host ("%": on none)."""
    return directory / "definitions" / host / f"{vm}.xml"


def unusable_copies(directory: Path) -> DefinitionCopies:
    """Return copies of which that of web-1 on the host `host` can be neither read nor replaced: it is a directory."""
    copies_file(directory, "host", "web-1").mkdir(parents=True)
    return DefinitionCopies(directory / "definitions")
