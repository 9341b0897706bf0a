"""`scheduled_events.crash_test` in pytest: each case is a test id, which passes, fails or is skipped with a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forewarn import scheduled_events
from forewarn.crash_test.text_report import describe_timeline
from forewarn.crash_test.timeline import (
    Approved,
    EventEnded,
    EventStarted,
    Observation,
    OtherRequest,
    Poller,
    ProgramExited,
)
from forewarn.errors import Rejected
from tests.crash_test.results import EVENT, a_timeline
from tests.support.crash_handlers import APPROVING_HANDLER, ENDPOINT_ENV

CASES = """
from forewarn.crash_test.approval_demands import approved, not_approved
from forewarn.crash_test.case import Case
from forewarn.crash_test.claims import HandlerProfile
from forewarn.crash_test.demands import prepared_before_start
from forewarn.crash_test.verdict import Severity

async def reboot(stage):
    await stage.until_polled()
    event = await stage.publish("Reboot", notice_s=20)
    await stage.until_approved(event, within_s=10)

async def rest(stage):
    await stage.wait(500)

def case(name, demand, script=reboot):
    return Case(
        id=f"own-{name}", title="A reboot is announced.", reason="It happens.", sources=("owner/repository#1",),
        profiles=frozenset(HandlerProfile), severity=Severity.LOSES_WORK, script=script, demands=(demand,),
        longest_s=600,
    )

CASES = [
    case("approves", approved()), case("leaves", not_approved()), case("prepares", prepared_before_start()),
    case("rests", approved(), rest),
]
"""
TESTS = f"""
import sys
from forewarn import scheduled_events

HANDLER = [sys.executable, "handler.py"]
test_handler = scheduled_events.crash_test(
    HANDLER, only="own", cases=["own_cases.py"], endpoint_env="{ENDPOINT_ENV}"
)

def test_another():
    pass
"""


def start_pytest(directory: Path, *arguments: str, tests: str = TESTS) -> subprocess.Popen[str]:
    for name, text in (("test_it.py", tests), ("own_cases.py", CASES), ("handler.py", APPROVING_HANDLER)):
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    ours = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-rs", *arguments, "."]
    return subprocess.Popen(line, cwd=directory, env=ours, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_pytest(directory: Path, *arguments: str, tests: str = TESTS) -> str:
    with start_pytest(directory, *arguments, tests=tests) as process:
        try:
            return process.communicate(timeout=200)[0]
        finally:
            process.kill()


@pytest.mark.crash
def test_each_case_is_a_test_with_its_own_verdict(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, "-v", "-k", "not rests")
    assert "test_it.py::test_handler[own-approves] PASSED" in output
    assert "test_it.py::test_handler[own-leaves] FAILED" in output
    assert "test_it.py::test_handler[own-prepares] SKIPPED" in output
    assert "unknown: only a probe can tell: give --prepared COMMAND" in output
    assert "demanded: it does not approve the event" in output
    assert "Reboot of web-0 was published" in output, "the timeline is shown"
    assert "forewarn crash-test --profile maintenance --only own-leaves" in output
    assert "1 failed, 2 passed, 1 skipped, 1 deselected" in output


@pytest.mark.crash
def test_workers_of_xdist_run_the_cases_of_their_tests(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, "-q", "-n", "2", "-k", "approves or leaves")
    assert "1 failed, 1 passed" in output


@pytest.mark.crash
def test_an_interrupted_pytest_leaves_nothing_running(tmp_path: Path) -> None:
    mark = f"--mark={tmp_path}"
    tests = TESTS.replace('"handler.py"]', f'"handler.py", "{mark}"]')
    with start_pytest(tmp_path, "-q", "-k", "rests", tests=tests) as process:
        try:
            wait_until_running(mark, is_expected=True)
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=100)[0]
        finally:
            process.kill()
    assert "KeyboardInterrupt" in output
    wait_until_running(mark, is_expected=False)


def wait_until_running(mark: str, *, is_expected: bool) -> None:
    """Wait until a handler with this argument runs, or none does any more."""
    deadline = time.monotonic() + 60
    while (mark in running_commands()) is not is_expected:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def running_commands() -> str:
    done = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if "handler.py" in line)


def test_a_handler_that_does_not_exist_fails_each_test_with_one_sentence(tmp_path: Path) -> None:
    tests = TESTS.replace("sys.executable, ", '"./absent", ')
    output = run_pytest(tmp_path, "-q", "-k", "approves", tests=tests)
    assert "the crash test did not run: the handler './absent' does not exist: check its path" in output


@pytest.mark.parametrize(
    ("options", "part"),
    [({"profile": "sport"}, "there is no profile 'sport'"), ({"only": ["notice-nothing"]}, "notice-nothing")],
)
def test_wrong_arguments_are_rejected_when_the_test_is_defined(options: dict[str, object], part: str) -> None:
    with pytest.raises(Rejected, match=part):
        scheduled_events.crash_test(["true"], **options)  # type: ignore[arg-type]


def test_type_checkers_accept_the_form_of_the_documentation(tmp_path: Path) -> None:
    path = tmp_path / "test_typed.py"
    path.write_text(
        "from forewarn import scheduled_events\n\n"
        'test_my_handler = scheduled_events.crash_test("./handler --fast", profile="spot", only=["notice"])\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "--follow-imports", "silent", str(path)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert "Success" in done.stdout, done.stdout


def test_a_timeline_is_readable_text() -> None:
    more: list[Observation] = [
        Approved(at=14.5, vm="web-0", by=Poller.HANDLER, event_ids=(), status=400, problem="no JSON"),
        OtherRequest(at=14.6, vm="web-0", by=Poller.HANDLER, method="GET", path="/x\n", status=None),
        OtherRequest(at=14.7, vm="web-0", by=Poller.REFERENCE, method="GET", path="/", status=404),
        EventEnded(at=21.0, event="OTHER-EVENT", is_withdrawn=True),
        EventStarted(at=22.0, event="OTHER-EVENT"),
        ProgramExited(at=23.0, vm="web-0", code=1),
    ]
    assert (
        "\n".join(describe_timeline(a_timeline(*more), "web-0"))
        == f"""\
    0.0 s  the program was started
    1.0 s  a poll got 200, no events
   10.0 s  Reboot of web-0 was published ({EVENT[:8]}), NotBefore at 40.0 s
   12.0 s  a poll got 200, {EVENT[:8]} Scheduled
   13.0 s  the probe prepared said yes
   14.0 s  it approved {EVENT[:8]} and got 200
   14.5 s  it approved nothing and got 400 (no JSON)
   14.6 s  it asked for GET /x\ufffd and got no answer
   15.0 s  the platform started {EVENT[:8]}
   15.0 s  the platform acted on the VM: reboot, until 17.0 s
   15.0 s  the program was ended (signal 9)
   17.0 s  the program was started with its VM
   18.0 s  {EVENT[:8]} was over
   19.0 s  the probe recovered said yes
   19.5 s  it wrote: done <b>&\ufffd[31m
   20.0 s  disturbance by the case: answers 503, until 26.0 s
   21.0 s  OTHER-EV was withdrawn
   22.0 s  the platform started OTHER-EV
   23.0 s  the program ended by itself (status 1)
   30.0 s  the case ended"""
    )
