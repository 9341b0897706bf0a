"""What one health check finds (spec §13.4): HTTP servers and Prometheus on loopback, and real commands."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from forewarn.base.http_client import HttpClient, LocalTargets
from forewarn.control.health_probes import HealthProber
from forewarn.core.health import CheckKind, CheckOutcome, CheckResult, HealthCheck
from forewarn.errors import Rejected
from tests.support.service_process import free_port
from tests.support.webhook_receiver import ReceiverAnswer, WebhookReceiver

COMMAND = HealthCheck(name="smoke", kind=CheckKind.COMMAND, command=("/bin/true",), timeout_s=60)


class AnsweringServer:
    """A server on loopback that answers every GET with `answer`."""

    def __init__(self) -> None:
        self.answer = ReceiverAnswer(body=b"all is well")
        self.receiver = WebhookReceiver(lambda method, body: self.answer)


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    server = AnsweringServer()
    with server.receiver:
        yield server


def probe(check: HealthCheck, *, allow_commands: bool = True) -> CheckResult:
    prober = HealthProber(HttpClient(local_targets=LocalTargets.LOOPBACK), allow_commands=allow_commands)
    return asyncio.run(prober.probe(check))


def http_check(server: AnsweringServer) -> HealthCheck:
    return HealthCheck(name="shop", kind=CheckKind.HTTP, url=server.receiver.url, timeout_s=60)


def test_an_http_check_is_good_with_the_expected_status_and_body(server: AnsweringServer) -> None:
    check = http_check(server)
    assert probe(check) == (CheckOutcome.GOOD, "it answered 200", 200)
    assert probe(replace(check, body="well")).outcome is CheckOutcome.GOOD
    assert probe(replace(check, body="ill")) == (CheckOutcome.BAD, "its body does not contain 'ill'", 200)
    assert probe(replace(check, status=204)) == (CheckOutcome.BAD, "it answered 200, not 204", 200)


def test_an_http_check_follows_no_redirect(server: AnsweringServer) -> None:
    server.answer = ReceiverAnswer(status=302, headers={"Location": server.receiver.url + "/elsewhere"})
    found = probe(http_check(server))
    assert found == (CheckOutcome.BAD, "it answered 302, not 200, and redirects are not followed", 302)
    assert len(server.receiver.received) == 1


def test_a_body_that_is_too_long_to_search_is_unclear(server: AnsweringServer) -> None:
    server.answer = ReceiverAnswer(body=b"x" * 300_000)
    assert probe(replace(http_check(server), body="y")).outcome is CheckOutcome.UNCLEAR


def test_a_server_that_does_not_answer_is_an_error(server: AnsweringServer) -> None:
    check = http_check(server)
    nobody = replace(check, url=f"http://127.0.0.1:{free_port()}/")
    assert probe(nobody) == CheckResult(CheckOutcome.ERROR, "it refused the connection")
    server.receiver.stop_answering()
    silent = probe(replace(check, timeout_s=0.2))
    assert silent == CheckResult(CheckOutcome.ERROR, "there was no response within 0.2 s")


def test_an_address_that_the_service_may_not_call_is_rejected(server: AnsweringServer) -> None:
    prober = HealthProber(HttpClient(local_targets=LocalTargets.NONE))
    with pytest.raises(Rejected, match="which the setting 'local_targets' does not allow"):
        prober.require_usable([http_check(server)])


def vector(*values: tuple[dict[str, str], str]) -> object:
    result = [{"metric": metric, "value": [1_700_000_000.1, value]} for metric, value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def nested(depth: int) -> object:
    """Text that is a list in a list, and so on: `json` cannot write that many."""
    return f"[[{depth}]]"


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (200, vector(({}, "0.5")), CheckResult(CheckOutcome.GOOD, "0.5", 0.5)),
        (
            200,
            vector(({"__name__": "up", "job": "a"}, "0"), ({"__name__": "up", "job": "b"}, "3")),
            CheckResult(CheckOutcome.BAD, "up{job=b} 3 is not < 1", 3.0),
        ),
        (200, vector(), CheckResult(CheckOutcome.UNCLEAR, "there is no data")),
        (200, vector(({}, "NaN")), CheckResult(CheckOutcome.UNCLEAR, "a value is not a number")),
        (
            200,
            {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "0.25"]}},
            CheckResult(CheckOutcome.GOOD, "0.25", 0.25),
        ),
        (
            200,
            {"status": "success", "data": {"resultType": "matrix", "result": []}},
            CheckResult(CheckOutcome.ERROR, "a query with a 'matrix' result cannot be compared"),
        ),
        (
            400,
            {"status": "error", "errorType": "bad_data", "error": "parse error: unclosed left parenthesis"},
            CheckResult(CheckOutcome.ERROR, "Prometheus refused the query: parse error: unclosed left parenthesis"),
        ),
        (
            200,
            {"status": "success", "data": {"resultType": "vector", "result": nested(5000)}},
            CheckResult(CheckOutcome.ERROR, "Prometheus answered 200 without a result"),
        ),
        (503, "overloaded", CheckResult(CheckOutcome.ERROR, "Prometheus answered 503 without a result")),
        (
            200,
            {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}}]}},
            CheckResult(CheckOutcome.ERROR, "a query with a 'vector' result cannot be compared"),
        ),
    ],
)
def test_the_answer_of_prometheus_decides(
    server: AnsweringServer, status: int, answer: object, expected: CheckResult
) -> None:
    server.answer = ReceiverAnswer(
        status=status, body=json.dumps(answer).replace('"[[5000]]"', "[" * 5000 + "]" * 5000).encode()
    )
    check = HealthCheck(
        name="errors", kind=CheckKind.PROMETHEUS, url=server.receiver.url, query="sum(x)", condition="< 1", timeout_s=60
    )
    assert probe(check) == expected
    assert server.receiver.received[0].target == "/hook/api/v1/query?query=sum%28x%29&timeout=60s"


@pytest.mark.parametrize(
    ("script", "outcome", "text"),
    [
        ("print('ready')", CheckOutcome.GOOD, "it ended with 0: ready"),
        ("print('7 errors'); exit(3)", CheckOutcome.BAD, "it ended with 3: 7 errors, not 0"),
        ("exit(75)", CheckOutcome.UNCLEAR, "it ended with 75"),
        ("import os; os.kill(os.getpid(), 9)", CheckOutcome.ERROR, "signal 9 ended it"),
    ],
)
def test_the_exit_status_of_a_command_decides(script: str, outcome: CheckOutcome, text: str) -> None:
    found = probe(replace(COMMAND, command=(sys.executable, "-c", script)))
    assert (found.outcome, found.text) == (outcome, text)


def test_a_command_gets_the_name_of_its_check_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_SECRET", "x")
    script = "import os; print(sorted(name for name in os.environ if name.startswith('FOREWARN')))"
    found = probe(replace(COMMAND, command=(sys.executable, "-c", script)))
    assert found.text == "it ended with 0: ['FOREWARN_CHECK']"


def test_a_command_that_cannot_be_started_or_does_not_end_is_an_error(tmp_path: Path) -> None:
    missing = probe(replace(COMMAND, command=("/does/not/exist",)))
    assert missing == CheckResult(CheckOutcome.ERROR, "/does/not/exist cannot be started: No such file or directory")
    pid_file = tmp_path / "pid"
    script = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    slow = probe(replace(COMMAND, command=(sys.executable, "-c", script), timeout_s=5))
    assert slow.text == "it did not end within 5 s"
    assert not Path(f"/proc/{pid_file.read_text()}").exists()


def test_a_command_is_an_error_while_the_service_runs_none(tmp_path: Path) -> None:
    """A setting that was switched off stops the commands of rollouts that were started before."""
    touched = tmp_path / "touched"
    found = probe(replace(COMMAND, command=("/usr/bin/touch", str(touched))), allow_commands=False)
    assert found.outcome is CheckOutcome.ERROR
    assert not os.path.exists(touched)


SLEEP = f"sleep {1000 + os.getpid()}"  # no other test has it
# A child without the session, the parent, the environment and the files of its command.
LEAVING = f"env -i setsid {SLEEP} </dev/null >/dev/null 2>&1 & sleep 0.2; exit 0"


@pytest.mark.parametrize(("script", "timeout_s", "text"), [
    pytest.param(f"setsid {SLEEP} & exec {SLEEP}", 1, "it did not end within 1 s", id="a session of its own"),
    pytest.param(LEAVING, 60, "it ended with 0", id="left behind"),
    pytest.param(f"({LEAVING}) & exec {SLEEP}", 1, "it did not end within 1 s", id="no parent"),
])  # fmt: skip
def test_children_that_made_a_session_of_their_own_end_with_their_command(
    script: str, timeout_s: float, text: str
) -> None:
    found = probe(replace(COMMAND, command=("/bin/sh", "-c", script), timeout_s=timeout_s))
    assert found.text == text
    assert not sleepers()


def test_a_cancelled_check_ends_its_command_and_the_children(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def cancel_once_begun() -> None:
        check = replace(COMMAND, command=("/bin/sh", "-c", f"setsid {SLEEP} & sleep 0.2; echo > {begun}; exec {SLEEP}"))
        prober = HealthProber(HttpClient(local_targets=LocalTargets.LOOPBACK), allow_commands=True)
        task = asyncio.create_task(prober.probe(check))
        async with asyncio.timeout(30):
            while not begun.exists():
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(cancel_once_begun())
    assert not sleepers()


def sleepers() -> set[str]:
    """The ids of the processes that run SLEEP."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes().split(b"\0")[:2] == SLEEP.encode().split():
                found.add(folder.name)
    return found
