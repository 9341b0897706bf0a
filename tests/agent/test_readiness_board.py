"""Approval when all listed VMs are done: each publishes its readiness on the board, and one approves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from forewarn.agent.actions import AgentSnapshot
from forewarn.agent.approval import BoardView
from forewarn.agent.model import OpenRecords
from forewarn.agent.readiness_board import BoardSynchronizer, ReadinessBoard
from forewarn.lab.lab import Lab
from tests.agent.conftest import AgentThread

TEXT = """
board = "BOARD"
[steps.drain]
use = "command"
run = "until [ -e FOLDER/may-go ]; do sleep 0.2; done; echo drain >> LOG"
undo = "echo undrain >> LOG"
budget = "10m"
[[rules]]
steps = ["drain"]
approve = "when-all-done"
"""
FLEET = """
[[hosts]]
name = "host-{n}"
count = 2
[[availability_sets]]
name = "web"
update_domains = 1
[[vms]]
name = "web-{n}"
count = 3
availability_set = "web"
host = "host-0"
"""


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return tmp_path / "board"


def test_each_vm_publishes_heartbeat_and_readiness_and_sees_the_others(board: Path) -> None:
    one, two = ReadinessBoard(board, "_Web-0"), ReadinessBoard(board, "web/1")
    assert one.publish_and_read([], ["E1"]) == BoardView(heartbeat_ages_s={"web-0": 0.0}, ready_vms={"E1": frozenset()})
    two.publish_and_read(["E1"], ["E1"])
    view = one.publish_and_read([], ["E1"])
    assert (set(view.heartbeat_ages_s), view.ready_vms) == ({"web-0", "web/1"}, {"E1": frozenset({"web/1"})})
    one.publish_and_read(["E1"], ["E1"])
    assert two.publish_and_read(["E1"], ["E1"]).ready_vms == {"E1": frozenset({"web-0", "web/1"})}


def test_a_vm_withdraws_its_readiness_and_the_last_one_removes_the_folder(board: Path) -> None:
    one, two = ReadinessBoard(board, "web-0"), ReadinessBoard(board, "web-1")
    one.publish_and_read(["E1"], ["E1"])
    two.publish_and_read(["E1"], ["E1"])
    assert one.publish_and_read([], ["E1"]).ready_vms == {"E1": frozenset({"web-1"})}
    one.remove_event("E1")
    assert (board / "ready" / "E1").exists()
    two.remove_event("E1")
    assert not (board / "ready" / "E1").exists()


@pytest.mark.parametrize(
    "beginning", ["E" * 120, "é" * 40, "Reboot of " + "web-0, " * 20], ids=["long", "longer as a file name", "no id"]
)
def test_a_vm_is_ready_only_for_its_event_however_long_the_ids_are(board: Path, beginning: str) -> None:
    one, two = ReadinessBoard(board, "web-0"), ReadinessBoard(board, "web-1")
    first, second = f"{beginning}1", f"{beginning}2"
    one.publish_and_read([first], [first])
    assert two.publish_and_read([], [first, second]).ready_vms == {first: frozenset({"web-0"}), second: frozenset()}
    one.remove_event(second)
    assert two.publish_and_read([], [first]).ready_vms == {first: frozenset({"web-0"})}


def test_heartbeat_ages_are_measured_by_the_file_servers_time(board: Path) -> None:
    one = ReadinessBoard(board, "web-0")
    ReadinessBoard(board, "web-1").publish_and_read([], [])
    mine = one.publish_and_read([], [])
    heartbeat = board / "alive" / "web-1"
    own_at = (board / "alive" / "web-0").stat().st_mtime
    os.utime(heartbeat, (own_at - 60, own_at - 60))
    assert mine.heartbeat_ages_s["web-1"] < 10
    assert one.publish_and_read([], []).heartbeat_ages_s["web-1"] >= 60


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab.from_text(FLEET) as lab:
        yield lab


def wait_for(lab: Lab, condition: Callable[[], object]) -> None:
    """Wait for as long as three agents and their commands may take on a busy machine."""
    lab.wait_for(condition)


def wait_for_lines(lab: Lab, agent: AgentThread, *lines: str) -> None:
    wait_for(lab, lambda: agent.lines == list(lines))


def make_agents(lab: Lab, tmp_path: Path, text: str = TEXT) -> list[AgentThread]:
    agents = []
    for name in ("web-0", "web-1", "web-2"):
        (tmp_path / name).mkdir()
        agents.append(
            AgentThread(tmp_path / name, lab.vm(name).endpoint, text.replace("BOARD", str(tmp_path / "board")))
        )
    return agents


def test_the_first_listed_vm_approves_once_all_are_ready(lab: Lab, tmp_path: Path) -> None:
    agents = make_agents(lab, tmp_path)
    with ExitStack() as stack:
        for agent in agents:
            stack.enter_context(agent)
        event = lab.reboot_host("web-0")
        assert len(event.vms) == 3
        for agent in agents[:2]:
            (agent.folder / "may-go").touch()
            wait_for_lines(lab, agent, "drain")
        wait_for(lab, lambda: any("web-2 not ready" in reason for _, reason in agents[0].report.waits))
        assert not event.approved
        (agents[2].folder / "may-go").touch()
        wait_for(lab, lambda: event.approved)
        assert event.approved_by == event.vms[0]
        lab.run_until(lambda: event.over)
        for agent in agents:
            wait_for_lines(lab, agent, "drain", "undrain")
        wait_for(lab, lambda: not any((tmp_path / "board" / "ready").iterdir()))


def test_the_next_vm_approves_when_the_approving_vm_dies(lab: Lab, tmp_path: Path) -> None:
    agents = make_agents(lab, tmp_path)
    for agent in agents[:2]:
        (agent.folder / "may-go").touch()
    with ExitStack() as stack:
        for agent in agents:
            stack.enter_context(agent)
        event = lab.reboot_host("web-0")
        for agent in agents[:2]:
            wait_for_lines(lab, agent, "drain")
        wait_for(lab, lambda: any("web-2 not ready" in reason for _, reason in agents[0].report.waits))
        agents[0].end()
        heartbeat = tmp_path / "board" / "alive" / "web-0"
        old = heartbeat.stat().st_mtime - 3600
        os.utime(heartbeat, (old, old))
        (agents[2].folder / "may-go").touch()
        wait_for(lab, lambda: event.approved)
        assert event.approved_by == event.vms[1]


@pytest.mark.parametrize("absent", ["wait", "30s"])
def test_a_listed_vm_without_an_agent_blocks_unless_the_rule_ignores_absent_vms(
    lab: Lab, tmp_path: Path, absent: str
) -> None:
    agents = make_agents(lab, tmp_path, f'{TEXT}absent = "{absent}"\n')[:2]
    with agents[0], agents[1]:
        event = lab.reboot_host("web-0")
        for agent in agents:
            (agent.folder / "may-go").touch()
        wait_for(lab, lambda: any("web-2 absent" in reason for _, reason in agents[0].report.waits))
        lab.advance("31s")
        if absent == "wait":
            polls = agents[0].observer.polls
            wait_for(lab, lambda: agents[0].observer.polls > polls + 5)
            assert not event.approved
        else:
            wait_for(lab, lambda: event.approved)


@pytest.mark.parametrize("loop_turns", range(5))
def test_a_synchronizer_that_is_woken_and_cancelled_at_once_ends(board: Path, loop_turns: int) -> None:
    async def wake_and_cancel() -> bool:
        empty_snapshot = AgentSnapshot(
            open_records=OpenRecords(), rules={}, steps={}, vm="web-0", now=0, boot_id="boot"
        )
        synchronizer = BoardSynchronizer(ReadinessBoard(board, "web-0"), lambda: empty_snapshot, lambda: None)
        task = asyncio.create_task(synchronizer.run())
        while not synchronizer.view.heartbeat_ages_s and not (board / "alive" / "web-0").exists():
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # it now waits for the next heartbeat, or will see the wake-up
        synchronizer.wake()
        for _ in range(loop_turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=60)
        return bool(done)

    assert asyncio.run(wake_and_cancel())
