"""The handler's program on one VM: its runs, its output, what it uses, and what the case does to it."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from forewarn.base.clock import LabClock
from forewarn.crash_test.case_recorder import CaseRecorder
from forewarn.crash_test.handler_machine import HandlerMachine, copy_user_directory, is_running
from forewarn.crash_test.handler_process import MAX_OUTPUT_LINES, HandlerProcess
from forewarn.crash_test.timeline import ProgramExited, ProgramOutput, ProgramStarted, ResourcesSampled, Timeline
from forewarn.errors import Refused
from tests.support.crash_handlers import make_machine, make_shell_machine

pytestmark = pytest.mark.crash

WITHIN_S = 30.0
Scenario = Callable[[HandlerProcess, CaseRecorder], Awaitable[None]]
both_machines = pytest.mark.parametrize(
    "in_namespaces",
    [pytest.param(False, id="child"), pytest.param(True, id="namespaces", marks=pytest.mark.namespaces)],
)


def run_handler(machine: HandlerMachine, scenario: Scenario, *, restart_after_exit_s: float | None = None) -> Timeline:
    """Boot the handler, run the scenario beside it, and return what was recorded."""

    async def run() -> Timeline:
        recorder = CaseRecorder(LabClock())
        handler = HandlerProcess(machine, vm="web-0", recorder=recorder, restart_after_exit_s=restart_after_exit_s)
        listener = await handler.open()
        try:
            await handler.boot()
            await scenario(handler, recorder)
            return recorder.finish()
        finally:
            await handler.close()
            listener.close()

    try:
        return asyncio.run(run())
    finally:
        machine.close()


async def wait_for_line(recorder: CaseRecorder, text: str, times: int = 1) -> None:
    def is_line(seen: object) -> bool:
        return isinstance(seen, ProgramOutput) and seen.text == text

    assert await recorder.wait_for(is_line, times=times, within_s=WITHIN_S), f"the handler did not write {text!r}"


async def wait_for_exit(recorder: CaseRecorder) -> None:
    assert await recorder.wait_for(lambda seen: isinstance(seen, ProgramExited), within_s=WITHIN_S)


def lines(timeline: Timeline) -> list[str]:
    return [item.text for item in timeline.of(ProgramOutput)]


@both_machines
def test_output_and_exit_status_of_a_handler_are_recorded(tmp_path: Path, in_namespaces: bool) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_exit(recorder)
        await wait_for_line(recorder, "two")

    program = "echo one; echo two >&2; exit 3"
    timeline = run_handler(make_shell_machine(tmp_path, program, in_namespaces=in_namespaces), scenario)

    assert sorted(lines(timeline)) == ["one", "two"]
    [started], [ended] = timeline.of(ProgramStarted), timeline.of(ProgramExited)
    assert (started.run, started.is_boot, started.vm) == (1, True, "web-0")
    assert (ended.code, ended.signal, ended.by_case) == (3, None, False)
    assert not timeline.is_running("web-0", timeline.ended_at)


@both_machines
def test_a_killed_handler_starts_again_with_its_files(tmp_path: Path, in_namespaces: bool) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "runs: 1, in memory: 1")
        await handler.kill(restart_after_s=0.1)
        await wait_for_line(recorder, "runs: 2, in memory: 2")

    program = """
echo x >> runs; echo x >> "$TMPDIR/runs"
echo "runs: $(wc -l < runs | tr -d ' '), in memory: $(wc -l < "$TMPDIR/runs" | tr -d ' ')"
exec sleep 1000
"""
    timeline = run_handler(make_shell_machine(tmp_path, program, in_namespaces=in_namespaces), scenario)

    assert [(item.run, item.is_boot) for item in timeline.of(ProgramStarted)] == [(1, True), (2, False)]
    [ended] = timeline.of(ProgramExited)
    assert (ended.code, ended.signal, ended.by_case) == (None, 9, True)


@both_machines
def test_a_reboot_keeps_files_on_disk_and_loses_those_in_memory(tmp_path: Path, in_namespaces: bool) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "runs: 1, in memory: 1")
        await handler.reboot(is_abrupt=False, down_s=0.0)
        await wait_for_line(recorder, "runs: 2, in memory: 1")

    program = """
echo x >> runs; echo x >> "$TMPDIR/runs"
echo "runs: $(wc -l < runs | tr -d ' '), in memory: $(wc -l < "$TMPDIR/runs" | tr -d ' ')"
exec sleep 1000
"""
    timeline = run_handler(make_shell_machine(tmp_path, program, in_namespaces=in_namespaces), scenario)

    assert [item.is_boot for item in timeline.of(ProgramStarted)] == [True, True]
    assert [item.by_case for item in timeline.of(ProgramExited)] == [True]


@pytest.mark.namespaces
def test_a_vm_has_its_own_hostname_and_a_new_boot_id_after_a_reboot_only(tmp_path: Path) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "host-of-web-0")
        await handler.kill(restart_after_s=0.0)
        await wait_for_line(recorder, "host-of-web-0", times=2)
        await handler.reboot(is_abrupt=True, down_s=0.0)
        await wait_for_line(recorder, "host-of-web-0", times=3)

    program = "cat /proc/sys/kernel/random/boot_id; uname -n; exec sleep 1000"
    timeline = run_handler(make_shell_machine(tmp_path, program, in_namespaces=True), scenario)

    first, second, third = (line for line in lines(timeline) if line != "host-of-web-0")
    assert first == second
    assert third not in ("", first)


@pytest.mark.namespaces
def test_a_handler_cannot_change_the_settings_of_the_machine(tmp_path: Path) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "tried")

    program = "(: >> /proc/sys/vm/swappiness) 2> /dev/null && echo changed; echo tried; exec sleep 1000"
    timeline = run_handler(make_shell_machine(tmp_path, program, in_namespaces=True), scenario)

    assert lines(timeline) == ["tried"]


@both_machines
def test_a_frozen_handler_stands_still_and_continues_afterwards(tmp_path: Path, in_namespaces: bool) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "tick", times=3)
        await handler.freeze(1.0)
        await wait_for_line(recorder, "tick", times=len(recorder.observations) + 3)

    program = "while :; do echo tick; sleep 0.05; done"
    timeline = run_handler(make_shell_machine(tmp_path, program, in_namespaces=in_namespaces), scenario)

    times = [item.at for item in timeline.of(ProgramOutput)]
    assert timeline.of(ProgramExited) == []
    assert max(later - earlier for earlier, later in pairwise(times)) >= 0.9


@both_machines
def test_a_command_beside_the_handler_sees_its_files(tmp_path: Path, in_namespaces: bool) -> None:
    statuses: list[int | None] = []

    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "ready")
        for command in ("test -f prepared", "test -f missing", "no-such-program", "kill -9 $$"):
            statuses.append(await handler.run_command(command, WITHIN_S))
        statuses.append(await handler.run_command("sleep 1000", 0.2))
        await handler.shut_down()
        statuses.append(await handler.run_command("true", WITHIN_S))

    program = "touch prepared; echo ready; exec sleep 1000"
    run_handler(make_shell_machine(tmp_path, program, in_namespaces=in_namespaces), scenario)

    assert statuses == [0, 1, 127, None, None, None]


@both_machines
def test_every_process_that_a_handler_started_ends_with_it(tmp_path: Path, in_namespaces: bool) -> None:
    machine = make_shell_machine(
        tmp_path, "sleep 1000 & (setsid sleep 1000 &) ; echo ready; wait", in_namespaces=in_namespaces
    )
    seen: list[int] = []

    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "ready")
        seen.extend(machine.list_pids())
        await handler.kill(restart_after_s=None)
        assert machine.list_pids() == []

    run_handler(machine, scenario)

    assert len(seen) >= 2
    assert not any(map(is_running, seen))


@both_machines
def test_what_a_handler_uses_is_sampled_with_its_child_processes(tmp_path: Path, in_namespaces: bool) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        handler.count_connections = lambda: 7
        await wait_for_line(recorder, "ready")
        sampling = asyncio.create_task(handler.sample_forever())
        assert await recorder.wait_for(lambda seen: isinstance(seen, ResourcesSampled), within_s=WITHIN_S)
        sampling.cancel()

    program = "sleep 1000 & sleep 1000 & echo ready; wait"
    timeline = run_handler(make_shell_machine(tmp_path, program, in_namespaces=in_namespaces), scenario)

    sample = timeline.of(ResourcesSampled)[0]
    assert (sample.processes, sample.connections) == (3, 7)
    assert sample.memory_bytes > 100_000
    assert sample.cpu_s >= 0


def test_a_one_shot_handler_is_started_again_after_each_exit(tmp_path: Path) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "looked", times=3)

    timeline = run_handler(make_shell_machine(tmp_path, "echo looked"), scenario, restart_after_exit_s=0.05)

    assert [item.is_boot for item in timeline.of(ProgramStarted)][:3] == [True, False, False]
    assert all(item.code == 0 and not item.by_case for item in timeline.of(ProgramExited))


def test_the_recorded_output_is_bounded(tmp_path: Path) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_exit(recorder)
        await wait_for_line(recorder, "(further output is not recorded)")

    program = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done"
    timeline = run_handler(make_shell_machine(tmp_path, program), scenario)

    assert len(lines(timeline)) == MAX_OUTPUT_LINES
    assert lines(timeline)[0] == "line 0"


@both_machines
def test_a_handler_that_cannot_be_executed_is_refused(tmp_path: Path, in_namespaces: bool) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        raise AssertionError("it must not start")

    machine = make_machine(tmp_path, "./missing-handler", in_namespaces=in_namespaces)
    with pytest.raises(Refused, match=r"cannot be started on VM web-0 \(No such file or directory\)"):
        run_handler(machine, scenario)


@pytest.mark.namespaces
def test_a_full_disk_of_a_vm_has_space_again_afterwards(tmp_path: Path) -> None:
    statuses: list[int | None] = []

    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "ready")
        write = "head -c 100000 /dev/zero > state"
        statuses.append(await handler.run_command(write, WITHIN_S))
        await handler.fill_disk()
        statuses.append(await handler.run_command(f"{write}2", WITHIN_S))
        await handler.free_disk()
        statuses.append(await handler.run_command(write, WITHIN_S))

    run_handler(make_shell_machine(tmp_path, "echo ready; exec sleep 1000", in_namespaces=True), scenario)

    assert statuses == [0, 1, 0]


@pytest.mark.namespaces
def test_the_disk_of_a_frozen_vm_cannot_be_filled_and_is_freed_after_the_freeze(tmp_path: Path) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "ready")
        assert await handler.fill_disk()
        freeze = asyncio.create_task(handler.freeze(1.0))
        await asyncio.sleep(0)  # until the freeze has begun
        assert not await handler.fill_disk()
        assert await handler.free_disk()
        assert freeze.done()

    run_handler(make_shell_machine(tmp_path, "echo ready; exec sleep 1000", in_namespaces=True), scenario)


def test_the_disk_of_a_plain_child_is_never_filled(tmp_path: Path) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        with pytest.raises(Refused, match="only a VM of namespaces"):
            await handler.fill_disk()

    run_handler(make_shell_machine(tmp_path, "exec sleep 1000"), scenario)


@pytest.mark.namespaces
def test_files_that_a_handler_writes_to_tmp_stay_in_its_vm(tmp_path: Path) -> None:
    name = f"/tmp/forewarn-test-{uuid4()}"

    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "ready")
        assert await handler.run_command(f"test -f {name}", WITHIN_S) == 0

    run_handler(
        make_shell_machine(tmp_path, f"touch {name}; echo ready; exec sleep 1000", in_namespaces=True), scenario
    )

    assert not os.path.exists(name)


@both_machines
def test_a_handler_changes_copies_of_the_files_in_the_directory_of_its_user(
    tmp_path: Path, in_namespaces: bool
) -> None:
    async def scenario(handler: HandlerProcess, recorder: CaseRecorder) -> None:
        await wait_for_line(recorder, "before")
        await wait_for_line(recorder, "after")

    machine_directory = tmp_path / "user"
    machine_directory.mkdir()
    state = machine_directory / "state"
    state.write_text("before\n")
    program = "cat state; echo after > state; cat state; exec sleep 1000"
    run_handler(make_shell_machine(tmp_path, program, in_namespaces=in_namespaces), scenario)

    assert state.read_text() == "before\n"


def test_large_files_and_directories_of_the_user_become_links(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "package").mkdir(parents=True)
    target.mkdir()
    (source / "large").write_bytes(bytes(300_000))
    (source / "small").write_text("small")

    copy_user_directory(source, target)

    assert (target / "package").resolve() == source / "package"
    assert (target / "large").is_symlink()
    assert not (target / "small").is_symlink()
    assert (target / "small").read_text() == "small"
