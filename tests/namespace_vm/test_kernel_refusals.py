"""A VM when the kernel or the disk refuses part of an act."""

import asyncio
import errno
import os
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from forewarn.machines.namespace_vm.act_executor import VmActExecutor
from forewarn.machines.namespace_vm.act_journal import VmActJournal
from forewarn.machines.namespace_vm.machine import RUNNING, Machine, empty_directory
from forewarn.machines.namespace_vm.messages import VmActOrder, VmDescription
from forewarn.machines.namespace_vm.namespaces import InitReply, VmNamespaces

NOBODY = 65534


class FailingFreeze:
    """Namespaces whose freeze fails after it stopped some processes."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def call(self, command: str, argument: Any = None) -> InitReply:
        self.called.append(command)
        if command == "freeze":
            raise OSError(errno.ENFILE, "too many open files")
        return InitReply(None)


def test_a_freeze_that_fails_halfway_leaves_no_process_stopped(tmp_path: Path) -> None:
    namespaces, sent = FailingFreeze(), asyncio.Queue[dict[str, Any]]()
    vm = VmDescription(name="web-0", computer_name="web-0", ephemeral=tmp_path / "e", directory=tmp_path)

    async def scenario() -> None:
        machine = Machine(cast(VmNamespaces, namespaces), vm, grace_s=1.0, boot_id="one")
        journal = VmActJournal(tmp_path / "journal.jsonl")
        acts = VmActExecutor(machine=machine, journal=journal, send=sent.put, default_duration_s=1.0)
        acts.vm_started.set()
        await acts.execute(VmActOrder(act="A", verb="freeze", effect="pause", duration_s=60.0))
        while "ok" not in (message := await sent.get()):
            pass
        journal.close()
        assert (message["ok"], machine.state) == (False, RUNNING)

    asyncio.run(scenario())
    assert namespaces.called == ["freeze", "thaw"]


def test_an_act_that_cannot_be_journalled_is_not_started_and_fails(tmp_path: Path) -> None:
    """It must neither stay under way for ever nor run a second time."""
    namespaces, sent = FailingFreeze(), asyncio.Queue[dict[str, Any]]()
    vm = VmDescription(name="web-0", computer_name="web-0", ephemeral=tmp_path / "e", directory=tmp_path)

    async def scenario() -> None:
        journal = VmActJournal(tmp_path / "journal.jsonl")
        machine = Machine(cast(VmNamespaces, namespaces), vm, grace_s=1.0, boot_id="one")
        acts = VmActExecutor(machine=machine, journal=journal, send=sent.put, default_duration_s=1.0)
        acts.vm_started.set()
        journal.close()  # like a disk that cannot be written
        await acts.execute(VmActOrder(act="A", verb="reboot", effect="reboot"))
        while "ok" not in (message := await sent.get()):
            pass
        assert message["note"] == "reboot was not started: the journal cannot be written (Bad file descriptor)"

    asyncio.run(scenario())
    assert namespaces.called == []


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_an_ephemeral_disk_with_read_only_directories_can_be_emptied(mode: int) -> None:
    """Go's module cache has such directories; a redeploy loses them too (spec §6)."""
    with tempfile.TemporaryDirectory() as place:
        disk = Path(place)
        inner = disk / "cache" / "module"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        for path in (inner / "file", inner, inner.parent, disk):
            os.chown(path, NOBODY if os.geteuid() == 0 else -1, -1)
        inner.chmod(mode)
        inner.parent.chmod(mode)
        user = os.geteuid()
        if user == 0:
            os.seteuid(NOBODY)  # root may do anything
        try:
            empty_directory(disk)
        finally:
            os.seteuid(user)
        assert list(disk.iterdir()) == []
