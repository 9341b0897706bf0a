"""A VM as one thing, when the kernel does not do all that it is asked."""

import asyncio
import errno
import os
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from forewarn.namespace_vm.act_executor import VmActExecutor
from forewarn.namespace_vm.act_journal import VmActJournal
from forewarn.namespace_vm.machine import RUNNING, Machine, empty_directory
from forewarn.namespace_vm.messages import VmActOrder, VmDescription
from forewarn.namespace_vm.namespaces import InitReply, VmNamespaces

NOBODY = 65534


class HalfFrozen:
    """Stops some of the VM, and fails over the rest."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def call(self, word: str, argument: Any = None) -> InitReply:
        self.called.append(word)
        if word == "freeze":
            raise OSError(errno.ENFILE, "too many open files")
        return InitReply(None)


def test_a_freeze_that_fails_halfway_leaves_nothing_stopped(tmp_path: Path) -> None:
    enclosure, told = HalfFrozen(), asyncio.Queue[dict[str, Any]]()
    vm = VmDescription(name="web-0", computer_name="web-0", ephemeral=tmp_path / "e", directory=tmp_path)

    async def story() -> None:
        machine = Machine(cast(VmNamespaces, enclosure), vm, grace_s=1.0, boot_id="one")
        journal = VmActJournal(tmp_path / "journal.jsonl")
        acts = VmActExecutor(machine=machine, journal=journal, tell=told.put, usual_s=1.0)
        acts.vm_started.set()
        await acts.execute(VmActOrder(act="A", verb="freeze", duration_s=60.0))
        while "ok" not in (said := await told.get()):
            pass
        journal.close()
        assert (said["ok"], machine.state) == (False, RUNNING)

    asyncio.run(story())
    assert enclosure.called == ["freeze", "thaw"]


def test_an_act_that_cannot_be_written_down_is_not_begun_and_is_told(tmp_path: Path) -> None:
    """It is neither under way for ever nor done a second time."""
    enclosure, told = HalfFrozen(), asyncio.Queue[dict[str, Any]]()
    vm = VmDescription(name="web-0", computer_name="web-0", ephemeral=tmp_path / "e", directory=tmp_path)

    async def story() -> None:
        journal = VmActJournal(tmp_path / "journal.jsonl")
        machine = Machine(cast(VmNamespaces, enclosure), vm, grace_s=1.0, boot_id="one")
        acts = VmActExecutor(machine=machine, journal=journal, tell=told.put, usual_s=1.0)
        acts.vm_started.set()
        journal.close()  # as good as a disk that takes nothing
        await acts.execute(VmActOrder(act="A", verb="reboot"))
        while "ok" not in (said := await told.get()):
            pass
        assert said["note"] == "reboot was not begun: it cannot be written down (Bad file descriptor)"

    asyncio.run(story())
    assert enclosure.called == []


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_disk_is_emptied_of_directories_that_nobody_may_write_to(mode: int) -> None:
    """Go keeps its modules in such; a Redeploy loses them all the same (spec §6)."""
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
