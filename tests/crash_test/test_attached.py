"""A handler that runs elsewhere already: its cases run one after the other on one address, and nothing touches it."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.crash_test import answers, attached, runner
from forewarn.crash_test.approval_demands import approved
from forewarn.crash_test.attached import endpoint_url, listen_for_handler, why_not_attachable
from forewarn.crash_test.case import Case, Layout, Need, judge_case
from forewarn.crash_test.cases import ALL_CASES, find_case
from forewarn.crash_test.claims import DEFAULT_CLAIMS, Approves, HandlerClaims
from forewarn.crash_test.program_demands import does_not_exit, still_polls
from forewarn.crash_test.result import load_result
from forewarn.crash_test.runner import CrashTestPlan, JudgedCase, run_attached_cases
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.timeline import Probe, ProbeAnswered
from forewarn.crash_test.verdict import CaseOutcome
from forewarn.errors import Refused, Rejected
from tests.crash_test.results import a_case, a_plan
from tests.support.crash_handler_model import Behaviour
from tests.support.crash_handlers import APPROVING_HANDLER, ENDPOINT_ENV
from tests.support.crash_simulation import simulate_case

SPEED = 10.0
CLAIMS = HandlerClaims(approves=Approves.OWN, polls_every_s=20.0)  # by the clock, which is ten times as fast
CALLS_THAT_NEED_CONTROL = {"kill_handler", "reboot_vm", "fill_disk", "free_disk"}


async def reboot(stage: Stage) -> None:
    """Publish a reboot, and wait until it has been approved and carried out."""
    event = await stage.publish("Reboot", notice_s=300.0)
    await stage.until_approved(event, within_s=300.0)
    await stage.until_over(event, within_s=300.0)


async def refuse_connections(stage: Stage) -> None:
    """Refuse connections until the case ends."""
    stage.substitute(answers.refuses_connections())
    await stage.wait(10.0)


def own_case(name: str, script: Callable[[Stage], Awaitable[None]], layout: Layout = Layout.SINGLE) -> Case:
    case = a_case(f"own-{name}", CaseOutcome.PASS)
    return replace(case, script=script, layout=layout, demands=(approved(), does_not_exit()))


@contextmanager
def running_handler(url: str, directory: Path, program: str = APPROVING_HANDLER) -> Iterator[subprocess.Popen[bytes]]:
    """A handler that somebody else started, and that calls this URL."""
    environment = {**os.environ, ENDPOINT_ENV: url}
    with subprocess.Popen([sys.executable, "-c", program], cwd=directory, env=environment) as handler:
        try:
            yield handler
        finally:
            handler.kill()


def run_attached(directory: Path, *cases: Case, program: str = APPROVING_HANDLER, **options: str) -> list[JudgedCase]:
    """Run cases with a handler that was started in this directory; it is running still when they have ended."""
    with listen_for_handler("127.0.0.1:0") as listener:
        plan = attached_plan(*cases, **options)
        with running_handler(endpoint_url(listener), directory, program) as handler:
            judged = asyncio.run(run_attached_cases(plan, listener, lambda progress: None))
            assert handler.poll() is None, "nothing ended the handler"
    return judged


def attached_plan(*cases: Case, prepared: str = "") -> CrashTestPlan:
    plan = a_plan(*cases, claims=CLAIMS, prepared=prepared, recovered="")
    return replace(plan, command=(), attached="127.0.0.1:0", vm="my-vm", speed=SPEED)


@pytest.mark.crash
def test_one_handler_goes_through_all_cases_on_one_address(tmp_path: Path) -> None:
    cases = (own_case("first", reboot), own_case("second", reboot, Layout.SET))
    first, second = run_attached(tmp_path, *cases)

    assert [item.verdict.outcome for item in (first, second)] == [CaseOutcome.PASS, CaseOutcome.PASS]
    assert (first.vm, first.neighbours) == ("my-vm", ())
    assert (second.vm, second.neighbours) == ("my-vm", ("db-1", "db-2"))
    assert first.verdict.findings[1].outcome is CaseOutcome.NOT_APPLICABLE
    seen = [poll.incarnation for item in (first, second) for poll in item.timeline.polls("my-vm")]
    assert seen == sorted(seen, key=lambda number: number or 0), "the handler sees one VM whose incarnation grows"


@pytest.mark.crash
def test_an_address_that_refused_connections_in_one_case_answers_in_the_next(tmp_path: Path) -> None:
    _, second = run_attached(tmp_path, own_case("refused", refuse_connections), own_case("after", reboot))
    assert second.verdict.outcome is CaseOutcome.PASS


@pytest.mark.crash
def test_probes_of_an_attached_handler_run_on_this_machine(tmp_path: Path) -> None:
    probe = f"test -e {tmp_path}/prepared"
    (judged,) = run_attached(tmp_path, own_case("probed", reboot), prepared=probe)
    answered = [(item.probe, item.is_yes) for item in judged.timeline.of(ProbeAnswered)]
    assert answered == [(Probe.PREPARED, False), (Probe.PREPARED, True)]


@pytest.mark.crash
def test_a_case_that_kills_a_handler_without_saying_so_is_unknown(tmp_path: Path) -> None:
    async def kill(stage: Stage) -> None:
        await stage.kill_handler()

    (judged,) = run_attached(tmp_path, own_case("kills", kill))
    assert judged.verdict.outcome is CaseOutcome.UNKNOWN
    assert "the handler runs elsewhere" in judged.verdict.reason


@pytest.mark.crash
def test_after_a_handler_has_ended_cases_are_unknown_and_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "_LONGEST_PAUSE_S", 0.1)
    ends_early = APPROVING_HANDLER.replace("while True:", "for _ in range(30):")
    case = replace(own_case("rest", lambda stage: stage.wait(100.0)), demands=(still_polls(),))
    with listen_for_handler("127.0.0.1:0") as listener:
        plan = replace(attached_plan(case, replace(case, id="own-later")), claims=HandlerClaims(polls_every_s=1.0))
        with running_handler(endpoint_url(listener), tmp_path, ends_early):
            first, later = asyncio.run(run_attached_cases(plan, listener, lambda progress: None))
    assert first.verdict.outcome is not CaseOutcome.PASS  # on a busy machine unknown: the reference poller was slow too
    assert later.verdict.outcome is CaseOutcome.UNKNOWN
    assert later.verdict.reason.startswith("the handler did not poll in the ")


@pytest.mark.crash
def test_without_any_poll_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FIRST_POLL_WITHIN_S", 0.3)
    plan = attached_plan(own_case("first", reboot))
    with listen_for_handler("127.0.0.1:0") as listener, pytest.raises(Refused, match="no handler polled"):
        asyncio.run(run_attached_cases(plan, listener, lambda progress: None))


@pytest.mark.crash
def test_the_command_says_where_to_point_the_handler_and_grades_it(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "forewarn", "crash-test", "--attach", "127.0.0.1:0", "--only", "notice-none")
    with subprocess.Popen(
        [*command, "--lab-time", "10", "--json", "result.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        hint = process.stderr.readline()
        url = re.search(r"Point the handler at (http://127\.0\.0\.1:\d+) \(its VM is web-0\)", hint)
        assert url, hint
        with running_handler(url[1], tmp_path):
            output, _ = process.communicate(timeout=120)
    assert process.returncode == 3, output  # without a probe it is unknown whether the application recovered
    assert "The handler ran elsewhere" in output
    result = load_result(tmp_path / "result.json")
    assert (result.attached, result.vm, result.command) == ("127.0.0.1:0", "web-0", ())
    assert result.cases[0].timeline.polls("web-0")


def test_cases_that_need_the_program_are_not_applicable() -> None:
    reasons = {case.id: why_not_attachable(case) for case in ALL_CASES}
    assert reasons["notice-reboot"] == ""
    assert reasons["survival-killed-three-times"] == "it starts, kills or reboots the handler, which runs elsewhere"
    assert reasons["transport-503-at-start"] == reasons["survival-full-disk"] == reasons["survival-killed-three-times"]
    assert "host name differs" in reasons["whom-scale-set-name"]
    assert reasons["cost-memory"] == "it watches the handler's process, which runs elsewhere"
    copies = replace(find_case("notice-reboot"), needs=frozenset({Need.SEVERAL_VMS}))
    assert "copies of the handler" in why_not_attachable(copies)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.id)
def test_a_case_that_kills_reboots_or_fills_a_disk_says_that_it_needs_control(case: Case) -> None:
    profile = min(case.profiles)
    stage, _ = asyncio.run(simulate_case(case, profile, DEFAULT_CLAIMS[profile], Behaviour()))
    if CALLS_THAT_NEED_CONTROL.intersection(stage.calls):
        assert case.needs & {Need.CONTROL, Need.NAMESPACES}


@pytest.mark.parametrize("case", [case for case in ALL_CASES if not why_not_attachable(case)], ids=lambda case: case.id)
def test_a_good_handler_that_runs_elsewhere_passes(case: Case) -> None:
    for profile in case.profiles:
        simulation = simulate_case(case, profile, DEFAULT_CLAIMS[profile], Behaviour(), is_attached=True)
        findings = judge_case(case, asyncio.run(simulation)[1]).findings
        assert {item.outcome for item in findings} <= {CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE}, findings


def test_a_listener_on_all_addresses_is_called_by_the_name_of_the_machine() -> None:
    with listen_for_handler("0.0.0.0:0") as listener:
        assert re.fullmatch(rf"http://{re.escape(socket.gethostname())}:\d+", endpoint_url(listener))
    with listen_for_handler("127.0.0.1:0") as listener:
        assert endpoint_url(listener).startswith("http://127.0.0.1:")


@pytest.mark.parametrize("address", ["8080", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:65536"])
def test_an_address_without_a_port_is_rejected(address: str) -> None:
    with pytest.raises(Rejected, match=r"write it like 127\.0\.0\.1:8080"):
        listen_for_handler(address)


def test_an_address_in_use_is_rejected() -> None:
    with listen_for_handler("127.0.0.1:0") as listener:
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(Rejected, match="give another address or port"):
            listen_for_handler(taken)
