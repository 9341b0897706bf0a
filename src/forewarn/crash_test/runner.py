"""Runs the cases of a crash test side by side, each in its own process, and judges what was observed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from forewarn.crash_test.attached import AttachedHandler, why_not_attachable
from forewarn.crash_test.case import Case, Need, Observed, judge_case
from forewarn.crash_test.claims import HandlerClaims, HandlerProfile
from forewarn.crash_test.run_case import CaseTask, RawCaseResult
from forewarn.crash_test.timeline import Probe, Timeline
from forewarn.crash_test.verdict import CaseOutcome, Finding, Verdict
from forewarn.errors import Refused

_MAX_RESULT_BYTES = 64 * 1024 * 1024
_START_AND_END_S = 30.0  # real time that a case's process may take beside its script
_KILL_AFTER_S = 20.0  # a case's process that has not ended what it started by then is killed
FIRST_POLL_WITHIN_S = 300.0  # real time in which an attached handler must poll


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashTestPlan:
    """What a crash test runs: the handler, what it claims, and the cases.

    The handler runs in VMs of namespaces; with `endpoint_env`, as a plain child that gets the endpoint's URL in this
    variable; with `attached` (ADDRESS:PORT) it runs elsewhere.
    """

    command: tuple[str, ...]  # the handler and its arguments; () with `attached`
    profile: HandlerProfile  # with CLUSTER, the handler runs on all VMs
    claims: HandlerClaims  # what the handler says it does
    cases: tuple[Case, ...]  # that run, in this order; built-in or of `case_files`, as their processes find them by id
    seed: int = 0  # decides random times of the scripts
    endpoint_env: str = ""  # the variable that gets the URL; "": the handler runs in a VM of namespaces
    prepared: str = ""  # the shell command of the probe `prepared`; "": none
    recovered: str = ""  # the shell command of the probe `recovered`; "": none
    speed: float = 1.0  # seconds of the service's clock per second of real time
    at_once: int = 8  # cases that run at the same time, 1 or more; an attached handler runs one
    case_files: tuple[Path, ...] = ()  # Python files with further cases
    attached: str = ""  # ADDRESS:PORT that a handler calls which runs elsewhere already; "": `command` is started
    vm: str = ""  # how documents call the VM of an attached handler; not "" with `attached`
    left_out: int = 0  # cases of the profile that were not selected


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCase:
    """A case that has run, or was left out, with its verdict and what the verdict follows from."""

    case: Case  # with its script and demands
    verdict: Verdict  # what each demand found
    timeline: Timeline  # what was observed
    took_s: float  # seconds of real time
    vm: str = ""  # the name of the VM on which the handler was judged; "": the case did not begin
    neighbours: tuple[str, ...] = ()  # the other VMs of its scope
    events: tuple[str, ...] = ()  # ids of the events that the script published, in order


@dataclass(slots=True)
class RunProgress:
    """How far a run has come, for progress displays; the runner changes this object as the run goes on."""

    waiting: list[str] = field(default_factory=list)  # ids of cases, in the order of the plan
    running: list[str] = field(default_factory=list)  # ids of cases, in the order in which they started
    done: list[JudgedCase] = field(default_factory=list)  # in the order in which they ended


async def run_cases(plan: CrashTestPlan, on_progress: Callable[[RunProgress], None]) -> list[JudgedCase]:
    """Run all cases of the plan and return them judged, in the order of the plan.

    Each case runs in a process, `at_once` of them at the same time. A case whose process fails, or takes over 30 s
    (real time) more than its `longest_s`, is unknown. All processes are ended if the caller is cancelled.
    """
    progress = RunProgress(waiting=[case.id for case in plan.cases])
    slots = asyncio.Semaphore(plan.at_once)

    async def run_in_slot(case: Case) -> JudgedCase:
        async with slots:
            progress.waiting.remove(case.id)
            progress.running.append(case.id)
            on_progress(progress)
            try:
                judged = await _run_case(plan, case)
            finally:
                progress.running.remove(case.id)
            progress.done.append(judged)
            on_progress(progress)
            return judged

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_in_slot(case)) for case in plan.cases]
    return [task.result() for task in tasks]


async def run_attached_cases(
    plan: CrashTestPlan, listener: socket.socket, on_progress: Callable[[RunProgress], None]
) -> list[JudgedCase]:
    """Run the cases of the plan, one after the other, with the handler that calls this listening socket."""
    handler = AttachedHandler(
        listener, vm=plan.vm, claims=plan.claims, probes=_probe_commands(plan), speed=plan.speed, seed=plan.seed
    )
    if not await handler.wait_for_first_poll(FIRST_POLL_WITHIN_S):
        minutes = FIRST_POLL_WITHIN_S / 60
        raise Refused(f"no handler polled {plan.attached} within {minutes:.0f} minutes: point it there, and try again")
    progress = RunProgress(waiting=[case.id for case in plan.cases])
    for case in plan.cases:
        progress.waiting.remove(case.id)
        progress.running.append(case.id)
        on_progress(progress)
        begin = asyncio.get_running_loop().time()
        if reason := why_not_attachable(case):
            judged = _not_applicable(case, reason)
        else:
            raw = await handler.run(case)
            judged = _judge_result(plan, case, raw, asyncio.get_running_loop().time() - begin)
        progress.running.remove(case.id)
        progress.done.append(judged)
        on_progress(progress)
    return list(progress.done)


def judge_again(case: Case, judged: JudgedCase, plan: CrashTestPlan) -> JudgedCase:
    """Return a copy of `judged` with a new verdict: that of `case` on the timeline recorded before."""
    return JudgedCase(
        case=case,
        verdict=judge_case(case, _observed(plan, judged)),
        timeline=judged.timeline,
        took_s=judged.took_s,
        vm=judged.vm,
        neighbours=judged.neighbours,
        events=judged.events,
    )


def unknown_verdict(case: Case, reason: str) -> Verdict:
    """Return the verdict on a case that could not be judged: every demand is unknown."""
    return _same_verdict(case, CaseOutcome.UNKNOWN, reason)


def _same_verdict(case: Case, outcome: CaseOutcome, reason: str) -> Verdict:
    findings = tuple(Finding(demand=demand.text, outcome=outcome, seen=reason) for demand in case.demands)
    return Verdict(case=case.id, severity=case.severity, is_rare=case.is_rare, findings=findings, reason=reason)


async def _run_case(plan: CrashTestPlan, case: Case) -> JudgedCase:
    if plan.endpoint_env and Need.NAMESPACES in case.needs:
        return _not_applicable(
            case, "it needs a VM of namespaces, and the handler runs without: leave --endpoint-env out"
        )
    if plan.profile is not HandlerProfile.CLUSTER and Need.SEVERAL_VMS in case.needs:
        return _not_applicable(case, "it needs copies of the handler on several VMs: give --profile cluster")
    begin = asyncio.get_running_loop().time()
    # The case removes its directory itself; this one does if the case's process is killed.
    with tempfile.TemporaryDirectory(prefix="forewarn-case-", ignore_cleanup_errors=True) as directory:
        raw = await _run_process(_case_task(plan, case, directory), case.longest_s + _START_AND_END_S)
    return _judge_result(plan, case, raw, asyncio.get_running_loop().time() - begin)


def _not_applicable(case: Case, reason: str) -> JudgedCase:
    verdict = _same_verdict(case, CaseOutcome.NOT_APPLICABLE, reason)
    return JudgedCase(case=case, verdict=verdict, timeline=Timeline(), took_s=0.0)


def _judge_result(plan: CrashTestPlan, case: Case, raw: RawCaseResult, took_s: float) -> JudgedCase:
    judged = JudgedCase(
        case=case,
        verdict=unknown_verdict(case, raw.problem or "it was not judged"),
        timeline=raw.timeline,
        took_s=took_s,
        vm=raw.vm,
        neighbours=raw.neighbours,
        events=raw.events,
    )
    return judged if raw.problem else judge_again(case, judged, plan)


def _case_task(plan: CrashTestPlan, case: Case, directory: str) -> CaseTask:
    return CaseTask(
        case=case.id,
        runner_pid=os.getpid(),
        directory=directory,
        case_files=tuple(str(path) for path in plan.case_files),
        command=plan.command,
        profile=plan.profile,
        claims=plan.claims,
        prepared=plan.prepared,
        recovered=plan.recovered,
        endpoint_env=plan.endpoint_env,
        seed=plan.seed,
        speed=plan.speed,
    )


async def _run_process(task: CaseTask, within_s: float) -> RawCaseResult:
    process = await asyncio.create_subprocess_exec(
        # -P: modules in the current directory, which is the handler's, must not replace ours.
        *(sys.executable, "-P", "-m", "forewarn.crash_test.run_case"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_RESULT_BYTES,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(within_s):
            output, errors = await process.communicate(msgspec.json.encode(task))
    except TimeoutError:
        return RawCaseResult(problem=f"the case did not end within {within_s:.0f} s, and was stopped")
    finally:
        await _end_process(process)
    try:
        return msgspec.json.decode(output, type=RawCaseResult)
    except msgspec.DecodeError:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return RawCaseResult(problem=f"the case's process ended with status {process.returncode}: {last[:300]}")


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """End a case's process: it ends what it started itself; if it does not, kill its whole session."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_KILL_AFTER_S):
            await process.wait()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _observed(plan: CrashTestPlan, judged: JudgedCase) -> Observed:
    return Observed(
        timeline=judged.timeline,
        claims=plan.claims,
        vm=judged.vm,
        neighbours=judged.neighbours,
        events=judged.events,
        probes=frozenset(_probe_commands(plan)),
        is_attached=bool(plan.attached),
    )


def _probe_commands(plan: CrashTestPlan) -> dict[Probe, str]:
    given = {Probe.PREPARED: plan.prepared, Probe.RECOVERED: plan.recovered}
    return {probe: command for probe, command in given.items() if command}
