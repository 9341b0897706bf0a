"""Runs one case in a process of its own: reads a task from stdin, writes observations to stdout.

Start it with `python -m forewarn.crash_test.run_case`. It ends everything that it started, even when it gets SIGTERM
or when its parent ends. It judges nothing: errors of this machine become a `problem`, never a verdict.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from forewarn.crash_test.case import Case, load_case_file
from forewarn.crash_test.cases import find_case
from forewarn.crash_test.claims import HandlerClaims, HandlerProfile
from forewarn.crash_test.handler_machine import ChildMachine, HandlerMachine, HandlerSpec, NamespaceMachine
from forewarn.crash_test.live_stage import LiveStage, StageSetup, open_live_stage
from forewarn.crash_test.preflight import declare_case_fleet, vms_with_handler
from forewarn.crash_test.timeline import Probe, Timeline
from forewarn.errors import ForewarnError, full_message
from forewarn.machines.namespace_vm.syscalls import die_with_parent

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOPPED = "the case was stopped before its end"
# The variable of handlers that has the path of a directory which all VMs of a case share, as a file server would give.
SHARED_DIRECTORY_ENV = "FOREWARN_SHARED_DIRECTORY"


class CaseTask(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one process: which case to run, with which handler; JSON on its stdin."""

    case: str  # the id
    command: tuple[str, ...]  # the handler and its arguments
    profile: HandlerProfile  # with CLUSTER, the handler runs on all VMs
    claims: HandlerClaims  # what the handler says it does
    runner_pid: int = 0  # the process that started this one; if that has ended, nothing runs. 0: any
    directory: str = ""  # an existing directory for the files of the case, which removes it; "": a new one
    case_files: tuple[str, ...] = ()  # paths of Python files with further cases
    prepared: str = ""  # the shell command of the probe `prepared`; "": none
    recovered: str = ""  # the shell command of the probe `recovered`; "": none
    endpoint_env: str = ""  # the variable that gets the URL; "": the handler runs in a VM of namespaces
    seed: int = 0  # of the random numbers of the script
    speed: float = 1.0  # seconds of the service's clock per second of real time


class RawCaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed in one case, not judged; a case's process writes it as JSON to stdout."""

    timeline: Timeline = Timeline()  # what was observed; empty if the case did not begin
    vm: str = ""  # the name of the VM on which the handler is judged; "": the case did not begin
    neighbours: tuple[str, ...] = ()  # the other VMs of its scope
    events: tuple[str, ...] = ()  # ids of the events that the script published, in order
    problem: str = ""  # why the timeline must not be judged, as a sentence; "": it may be


def main() -> int:
    """Run the task on stdin and write its result to stdout; return the exit status."""
    die_with_parent(signal.SIGTERM)
    results = os.dup(1)
    os.dup2(2, 1)  # what a case file or a library prints must not get into the result
    try:
        task = msgspec.json.decode(sys.stdin.buffer.read(), type=CaseTask)
    except msgspec.DecodeError as error:
        print(f"the task on stdin is not understood: {error}", file=sys.stderr)
        return 1
    if task.runner_pid not in (0, os.getppid()):  # it ended before the kernel was asked to tell
        shutil.rmtree(task.directory, ignore_errors=True)
        return 1
    result = _run_task(task)
    with os.fdopen(results, "wb") as stream:
        stream.write(msgspec.json.encode(result))
    return 0


def _run_task(task: CaseTask) -> RawCaseResult:
    # Call it in the main thread, without a running event loop: it forks, and it handles SIGTERM and SIGINT meanwhile.
    received: list[int] = []  # signals to stop, before the stage is open
    earlier = {n: signal.signal(n, lambda number, frame: received.append(number)) for n in _STOP_SIGNALS}
    try:
        return _run(task, _find_task_case(task), received)
    except ForewarnError as error:
        return RawCaseResult(problem=full_message(error))
    except OSError as error:
        return RawCaseResult(problem=f"this machine cannot run the case: {error.strerror or error}")
    except asyncio.CancelledError:
        return RawCaseResult(problem=_STOPPED)
    except Exception as error:
        traceback.print_exc()
        return RawCaseResult(problem=f"the crash test itself failed: {type(error).__name__}: {error}")
    finally:
        for number, earlier_handler in earlier.items():
            signal.signal(number, earlier_handler)


def _find_task_case(task: CaseTask) -> Case:
    return find_case(task.case, [case for path in task.case_files for case in load_case_file(Path(path))])


def _run(task: CaseTask, case: Case, received: Sequence[int]) -> RawCaseResult:
    random.seed(f"{task.seed}/{case.id}")
    fleet = declare_case_fleet(case.layout)
    with ExitStack() as stack:
        directory = Path(task.directory or tempfile.mkdtemp(prefix="forewarn-case-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        machines: dict[str, HandlerMachine] = {}
        hostnames = {vm.name: vm.computer_name or vm.name for vm in fleet.vms}
        shared_directory = directory / "shared-by-all-vms"
        shared_directory.mkdir()
        environment = {**os.environ, SHARED_DIRECTORY_ENV: str(shared_directory)}
        for vm in vms_with_handler(fleet, task.profile):
            machines[vm] = _create_machine(task, vm, hostnames[vm], directory / vm, environment)
            stack.callback(machines[vm].close)
        setup = StageSetup(
            fleet=fleet,
            machines=machines,
            probes=_given_probes(task),
            is_one_shot=task.claims.one_shot,
            speed=task.speed,
            clock_offset_s=case.clock_offset_s,
        )
        return asyncio.run(_run_stoppable(case, setup, received))


def _create_machine(
    task: CaseTask, vm: str, hostname: str, directory: Path, environment: Mapping[str, str]
) -> HandlerMachine:
    directory.mkdir()
    spec = HandlerSpec(
        vm=vm,
        hostname=hostname,
        command=task.command,
        directory=directory,
        user_directory=Path.cwd(),
        environment=environment,
        endpoint_env=task.endpoint_env,
    )
    return ChildMachine(spec) if task.endpoint_env else NamespaceMachine(spec)


def _given_probes(task: CaseTask) -> Mapping[Probe, str]:
    given = {Probe.PREPARED: task.prepared, Probe.RECOVERED: task.recovered}
    return {probe: command for probe, command in given.items() if command}


async def _run_stoppable(case: Case, setup: StageSetup, received: Sequence[int]) -> RawCaseResult:
    """Run the case; SIGTERM and SIGINT end it early, and then it is not judged."""
    run = asyncio.create_task(_run_on_stage(case, setup))
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, run.cancel)
    if received:
        run.cancel()
    try:
        return await run
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # it is ending already


async def _run_on_stage(case: Case, setup: StageSetup) -> RawCaseResult:
    async with open_live_stage(setup) as stage:
        return await play_case(case, stage)


async def play_case(case: Case, stage: LiveStage) -> RawCaseResult:
    """Run the script of a case on an open stage, and return what was observed; the stage is finished then."""
    problem = await _run_script(case, stage, case.longest_s)
    return RawCaseResult(
        timeline=stage.finish(),
        vm=stage.vm,
        neighbours=stage.neighbours,
        events=tuple(event.id for event in stage.events),
        problem=stage.problem or problem,
    )


async def _run_script(case: Case, stage: LiveStage, within_s: float) -> str:
    try:
        async with asyncio.timeout(within_s):
            await case.script(stage)
    except TimeoutError:
        return f"the script of the case did not end within {within_s:.0f} s"
    except ForewarnError as error:
        return f"the script of the case could not go on: {full_message(error)}"
    except Exception as error:
        traceback.print_exc()
        return f"the script of the case failed: {type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
