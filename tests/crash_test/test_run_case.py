"""The process that runs one case: task in, observations out, and nothing left running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from forewarn.crash_test.claims import HandlerClaims, HandlerProfile
from forewarn.crash_test.handler_machine import is_running, list_descendants
from forewarn.crash_test.run_case import CaseTask, RawCaseResult
from forewarn.crash_test.timeline import EventEnded, ProgramExited, ProgramOutput, ProgramStarted
from tests.support.crash_handlers import APPROVING_HANDLER, ENDPOINT_ENV

pytestmark = pytest.mark.crash

COMMAND = (sys.executable, "-m", "forewarn.crash_test.run_case")
CASE_FILE = """
import random
from forewarn.crash_test.case import Case, Layout
from forewarn.crash_test.claims import HandlerProfile
from forewarn.crash_test.verdict import Severity

print("a case file may print")

async def approve(stage):
    await stage.until_polled(within_s=600)
    event = await stage.publish("Freeze")
    await stage.until_approved(event, within_s=600)
    await stage.until_over(event, within_s=600)

async def hang(stage):
    await stage.wait(1e6)

async def fail(stage):
    raise ZeroDivisionError("a mistake in the script")

async def refuse(stage):
    await stage.publish("Preempt")

async def draw(stage):
    raise ValueError(random.random())

async def work_together(stage):
    for vm in (stage.vm, *stage.neighbours):
        await stage.until_polled(vm=vm, within_s=600)

def case(name, script, longest_s, layout=Layout.SINGLE):
    return Case(
        id=f"own-{name}", layout=layout, title="A case.", reason="It tests the test.", sources=("example/example#1",),
        profiles=frozenset(HandlerProfile), severity=Severity.NOISE, script=script, demands=(), longest_s=longest_s,
    )

CASES = [
    case("approve", approve, 120), case("hang", hang, 3), case("long", hang, 600), case("fail", fail, 60),
    case("refuse", refuse, 60), case("random", draw, 60), case("together", work_together, 60, Layout.SET),
]
"""

# Polls once all three VMs have written a file of theirs into the shared directory.
SHARING_HANDLER = f"""
import os, pathlib, time, uuid
directory = pathlib.Path(os.environ["FOREWARN_SHARED_DIRECTORY"])
(directory / str(uuid.uuid4())).touch()
while len(list(directory.iterdir())) < 3:
    time.sleep(0.05)
print("files:", len(list(directory.iterdir())), flush=True)
{APPROVING_HANDLER}
"""


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "own_cases.py"
    path.write_text(CASE_FILE)
    return path


@pytest.fixture
def handler(tmp_path: Path) -> Path:
    path = tmp_path / "handler.py"
    path.write_text(f"import os\nprint('pid', os.getpid(), flush=True)\n{APPROVING_HANDLER}")
    return path


def make_task(case_file: Path, handler: Path, case: str, *, endpoint_env: str = ENDPOINT_ENV) -> CaseTask:
    return CaseTask(
        case=case,
        case_files=(str(case_file),),
        command=(sys.executable, str(handler)),
        profile=HandlerProfile.MAINTENANCE,
        claims=HandlerClaims(),
        endpoint_env=endpoint_env,
        speed=10.0,
    )


def run(task: CaseTask, directory: Path) -> RawCaseResult:
    done = subprocess.run(
        COMMAND, input=msgspec.json.encode(task), capture_output=True, timeout=120, cwd=directory, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=RawCaseResult)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize(
    "endpoint_env",
    [
        pytest.param(ENDPOINT_ENV, id="child"),
        pytest.param("", id="namespaces", marks=pytest.mark.namespaces),
    ],
)
def test_a_case_returns_its_timeline_and_events(
    case_file: Path, handler: Path, tmp_path: Path, endpoint_env: str
) -> None:
    result = run(make_task(case_file, handler, "own-approve", endpoint_env=endpoint_env), tmp_path)

    assert (result.problem, result.vm, result.neighbours) == ("", "web-0", ())
    assert [ended.event for ended in result.timeline.of(EventEnded)] == list(result.events)
    assert len(result.timeline.of(ProgramStarted)) == 1
    assert result.timeline.of(ProgramExited) == [], "the end of the case is not an end of the program"
    assert result.timeline.approvals("web-0", result.events[0])
    assert result.timeline.of(ProgramOutput)[0].text.startswith("pid ")


@pytest.mark.parametrize(
    "endpoint_env",
    [
        pytest.param(ENDPOINT_ENV, id="children"),
        pytest.param("", id="namespaces", marks=pytest.mark.namespaces),
    ],
)
def test_all_vms_of_a_case_share_a_directory(case_file: Path, tmp_path: Path, endpoint_env: str) -> None:
    handler = tmp_path / "handler.py"
    handler.write_text(SHARING_HANDLER)
    task = make_task(case_file, handler, "own-together", endpoint_env=endpoint_env)
    result = run(msgspec.structs.replace(task, profile=HandlerProfile.CLUSTER), tmp_path)

    assert result.problem == ""
    assert {output.vm for output in result.timeline.of(ProgramOutput) if output.text == "files: 3"} == {
        "db-0",
        "db-1",
        "db-2",
    }


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        pytest.param("own-hang", "the script of the case did not end within 3 s", id="a script that hangs"),
        pytest.param(
            "own-fail",
            "the script of the case failed: ZeroDivisionError: a mistake in the script",
            id="a script with a mistake",
        ),
        pytest.param("own-refuse", "the script of the case could not go on: VM 'web-0'", id="an impossible event"),
        pytest.param("own-missing", "there is no case 'own-missing': ", id="an unknown case"),
    ],
)
def test_a_case_that_cannot_be_judged_says_why(
    case_file: Path, handler: Path, tmp_path: Path, case: str, problem: str
) -> None:
    result = run(make_task(case_file, handler, case), tmp_path)

    assert result.problem.startswith(problem)


@pytest.mark.parametrize("name", ["missing-handler", "not-executable"])
def test_a_handler_that_cannot_be_started_is_a_problem_and_no_verdict(
    case_file: Path, handler: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "not-executable").write_text("x")
    task = msgspec.structs.replace(make_task(case_file, handler, "own-approve"), command=(f"./{name}",))

    result = run(task, tmp_path)

    assert result.problem.startswith("the handler cannot be started on VM web-0 (")


def test_a_case_file_with_a_mistake_is_named(case_file: Path, handler: Path, tmp_path: Path) -> None:
    case_file.write_text("CASES = [1]")

    result = run(make_task(case_file, handler, "own-approve"), tmp_path)

    assert result.problem == f"the case file {str(case_file)!r} has no list CASES of cases: add CASES = [Case(…), …]"


def test_a_task_that_is_no_json_leaves_stdout_empty(tmp_path: Path) -> None:
    done = subprocess.run(COMMAND, input=b"nonsense", capture_output=True, timeout=60, cwd=tmp_path, check=False)

    assert (done.returncode, done.stdout) == (1, b"")
    assert b"the task on stdin is not understood" in done.stderr
    assert b"Traceback" not in done.stderr


def test_the_seed_decides_the_random_numbers_of_a_script(case_file: Path, handler: Path, tmp_path: Path) -> None:
    task = make_task(case_file, handler, "own-random")
    first, again, other = (run(msgspec.structs.replace(task, seed=seed), tmp_path).problem for seed in (1, 1, 2))

    assert first.startswith("the script of the case failed: ValueError: 0.")
    assert again == first
    assert other != first


@pytest.mark.parametrize(
    "endpoint_env",
    [
        pytest.param(ENDPOINT_ENV, id="child"),
        pytest.param("", id="namespaces", marks=pytest.mark.namespaces),
    ],
)
def test_a_stopped_case_leaves_no_process_behind(
    case_file: Path, handler: Path, tmp_path: Path, endpoint_env: str
) -> None:
    process = start_long_case(case_file, handler, tmp_path, endpoint_env)
    pids = wait_for_handler(process.pid, handler)

    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert msgspec.json.decode(output, type=RawCaseResult).problem == "the case was stopped before its end"
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(
    "endpoint_env",
    [
        pytest.param(ENDPOINT_ENV, id="child"),
        pytest.param("", id="namespaces", marks=pytest.mark.namespaces),
    ],
)
def test_a_killed_case_leaves_no_process_behind(
    case_file: Path, handler: Path, tmp_path: Path, endpoint_env: str
) -> None:
    process = start_long_case(case_file, handler, tmp_path, endpoint_env)
    pids = wait_for_handler(process.pid, handler)

    process.kill()
    process.communicate(timeout=60)

    wait_until(lambda: not any(map(is_running, pids)), "the handler outlived the case")


def test_a_case_ends_when_its_parent_ends(case_file: Path, handler: Path, tmp_path: Path) -> None:
    task = tmp_path / "task.json"
    task.write_bytes(msgspec.json.encode(make_task(case_file, handler, "own-long")))
    program = "import subprocess, sys; print(subprocess.Popen(sys.argv[2:], stdin=open(sys.argv[1])).pid, flush=True); "
    program += "sys.stdin.read()"
    parent = subprocess.Popen(
        (sys.executable, "-c", program, str(task), *COMMAND),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    assert parent.stdout is not None
    case_pid = int(parent.stdout.readline())
    pids = wait_for_handler(case_pid, handler)

    parent.kill()
    parent.communicate(timeout=60)

    wait_until(lambda: not any(map(is_running, [case_pid, *pids])), "the case outlived its parent")


def start_long_case(case_file: Path, handler: Path, directory: Path, endpoint_env: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory)},  # a killed process leaves its directory behind
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(make_task(case_file, handler, "own-long", endpoint_env=endpoint_env)))
    process.stdin.close()
    process.stdin = None
    return process


def wait_for_handler(case_pid: int, handler: Path) -> list[int]:
    """Wait until the handler runs below this process, and return the pids of all its processes."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [pid for pid in list_descendants(case_pid) if str(handler) in command_line(pid)]
        return bool(found)

    wait_until(is_there, "the handler was not started")
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
