"""Crash tests of a handler in pytest: each case is a separate test.

In a test module, at its top level:

    from forewarn import scheduled_events

    test_my_handler = scheduled_events.crash_test(["./my-handler"], profile="spot")

The cases run side by side in the background from the first of these tests on, and only those that pytest selected.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from forewarn.errors import ForewarnError, Rejected, full_message

if TYPE_CHECKING:
    from forewarn.crash_test.case import Case
    from forewarn.crash_test.runner import CrashTestPlan, JudgedCase, RunProgress

ProfileName = Literal["spot", "maintenance", "cluster", "observer"]
_PARAMETER = "case_id"
_STOP_S = 60.0
_CASES_PER_CORE = 6  # handlers mostly sleep


def crash_test(
    handler: str | Sequence[str],
    *,
    profile: ProfileName = "maintenance",
    only: str | Sequence[str] = (),
    claims: str | Path | None = None,
    prepared: str = "",
    recovered: str = "",
    endpoint_env: str = "",
    cases: Sequence[str | Path] = (),
    seed: int = 0,
    at_once: int | None = None,
) -> Callable[..., None]:
    """Return a test function for pytest with one test id for each case of the profile; runs nothing yet.

    `handler` is its command: a list of arguments, or a text with quotes as in a shell. The other arguments are the
    options of `forewarn crash-test`: `only` names a case or area, or several (an empty list: all; "" is rejected),
    `claims` is a file (None: the defaults of the profile), `prepared` and `recovered` are shell commands that are
    probes ("": none), `endpoint_env` is the variable that gets the endpoint's URL ("": the handler runs in VMs of
    namespaces), `cases` are files with further cases, `seed` is the seed of the random times, `at_once` is the number
    of cases that run at the same time (None or 0: six per core). A test waits for its case, and passes if the case
    does, even if it was slow. It fails, with what was demanded and seen, if the case does, and if the run cannot start.
    It is skipped, with the reason, if the outcome is unknown or the case is not applicable. Raises Rejected for an
    unknown profile, case or area, for a wrong file, and for an `endpoint_env` that cannot be the name of a variable,
    ValueError for open quotes in `handler`. Whether the handler can be run is only checked by the tests. In a worker of
    pytest-xdist, each case runs alone, when its test does.
    """
    run = _CrashTestRun(
        _make_plan(
            shlex.split(handler) if isinstance(handler, str) else handler,
            profile=profile,
            only=[only] if isinstance(only, str) else only,
            claims=None if claims is None else Path(claims),
            case_files=tuple(map(Path, cases)),
            prepared=prepared,
            recovered=recovered,
            endpoint_env=endpoint_env,
            seed=seed,
            at_once=at_once,
        )
    )

    @pytest.mark.parametrize(_PARAMETER, [case.id for case in run.plan.cases])
    def test_case(case_id: str, request: pytest.FixtureRequest) -> None:
        __tracebackhide__ = True
        run.report(case_id, request)

    return test_case


def _make_plan(
    command: Sequence[str],
    *,
    profile: str,
    only: Sequence[str],
    claims: Path | None,
    case_files: tuple[Path, ...],
    prepared: str,
    recovered: str,
    endpoint_env: str,
    seed: int,
    at_once: int | None,
) -> CrashTestPlan:
    from forewarn.crash_test.case import load_case_file
    from forewarn.crash_test.claims import DEFAULT_CLAIMS, HandlerProfile, load_claims
    from forewarn.crash_test.preflight import combine_cases, require_variable_name, select_cases
    from forewarn.crash_test.runner import CrashTestPlan

    if endpoint_env:
        require_variable_name(endpoint_env)
    if profile not in tuple(HandlerProfile):
        raise Rejected(f"there is no profile {profile!r}: use {', '.join(HandlerProfile)}")
    chosen = HandlerProfile(profile)
    known = combine_cases([case for path in case_files for case in load_case_file(path)])
    return CrashTestPlan(
        command=tuple(command),
        profile=chosen,
        claims=DEFAULT_CLAIMS[chosen] if claims is None else load_claims(claims, chosen),
        cases=select_cases(known, chosen, only),
        seed=seed,
        endpoint_env=endpoint_env,
        prepared=prepared,
        recovered=recovered,
        at_once=at_once or _CASES_PER_CORE * (os.cpu_count() or 1),
        case_files=case_files,
    )


class _CrashTestRun:
    """The run behind one test function: it starts with the first test, in a thread, and ends with pytest."""

    # A worker of pytest-xdist cannot know which tests it will get: there, each case runs when its test does.

    def __init__(self, plan: CrashTestPlan) -> None:
        self.plan = plan
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards what follows
        self._judged: dict[str, JudgedCase] = {}
        self._has_ended = False
        self._problem = "it ended early"  # why it has ended, if a case was not judged
        self._stop: Callable[[], object] = lambda: None

    def report(self, case_id: str, request: pytest.FixtureRequest) -> None:
        __tracebackhide__ = True
        if self._thread is None:
            is_worker = hasattr(request.config, "workerinput")
            selected = {case_id} if is_worker else _selected_cases(request)
            self._start([case for case in self.plan.cases if case.id in selected])
            request.config.add_cleanup(self._end)
        with self._changed:
            self._changed.wait_for(lambda: case_id in self._judged or self._has_ended)
        judged = self._judged.get(case_id)
        if hasattr(request.config, "workerinput"):
            self._end()
        if judged is None:
            pytest.fail(f"the crash test did not run: {self._problem}", pytrace=False)
        request.node.user_properties.append(("crash_test_outcome", str(judged.verdict.outcome)))
        _report_verdict(self.plan, judged)

    def _start(self, cases: Sequence[Case]) -> None:
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, args=[tuple(cases)], name="crash-test", daemon=True)
        self._thread.start()

    def _end(self) -> None:
        with self._changed:
            self._stop()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            self._thread = None

    def _run(self, cases: tuple[Case, ...]) -> None:
        try:
            asyncio.run(self._run_cases(cases))
        except ForewarnError as error:
            self._problem = full_message(error)
        except asyncio.CancelledError:
            self._problem = "it was stopped"
        finally:
            with self._changed:
                self._has_ended = True
                self._stop = lambda: None
                self._changed.notify_all()

    async def _run_cases(self, cases: tuple[Case, ...]) -> None:
        from forewarn.crash_test.preflight import require_handler, require_namespaces
        from forewarn.crash_test.runner import run_cases

        require_handler(self.plan.command)
        if not self.plan.endpoint_env:
            require_namespaces()
        task = asyncio.create_task(run_cases(replace(self.plan, cases=cases), self._on_progress))
        loop = asyncio.get_running_loop()
        with self._changed:
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        await task

    def _on_progress(self, progress: RunProgress) -> None:
        with self._changed:
            self._judged |= {judged.case.id: judged for judged in progress.done}
            self._changed.notify_all()


def _selected_cases(request: pytest.FixtureRequest) -> set[str]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    return {str(item.callspec.params[_PARAMETER]) for item in items if item.function is request.function}


def _report_verdict(plan: CrashTestPlan, judged: JudgedCase) -> None:
    from forewarn.crash_test.text_report import describe_timeline
    from forewarn.crash_test.verdict import CaseOutcome

    __tracebackhide__ = True
    case, outcome = judged.case, judged.verdict.outcome
    findings = [finding for finding in judged.verdict.findings if finding.outcome is outcome]
    if outcome in (CaseOutcome.UNKNOWN, CaseOutcome.NOT_APPLICABLE):
        reasons = dict.fromkeys([judged.verdict.reason] if judged.verdict.reason else [item.seen for item in findings])
        pytest.skip(f"{outcome}: {'; '.join(reasons)}")
    if outcome is not CaseOutcome.FAIL:
        return
    lines = [f"{case.title} (a failure: {case.severity}{', in a rare case' if case.is_rare else ''})"]
    for finding in findings:
        lines += [f"  demanded: {finding.demand}", f"  seen:     {finding.seen}"]
    lines += ["", "What happened, by the service's clock:", *describe_timeline(judged.timeline, judged.vm)]
    lines += ["", f"{case.reason} (source: {', '.join(case.sources)})", _describe_rerun(plan, case)]
    pytest.fail("\n".join(lines), pytrace=False)


def _describe_rerun(plan: CrashTestPlan, case: Case) -> str:
    variable = ["--endpoint-env", plan.endpoint_env] if plan.endpoint_env else []
    words = ["forewarn", "crash-test", "--profile", plan.profile, "--only", case.id, *variable, "--", *plan.command]
    return f"Run it alone: {shlex.join(words)}"
