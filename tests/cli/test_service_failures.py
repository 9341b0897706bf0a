"""Failures of the service, and installations without all extras."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from forewarn.cli import completion
from forewarn.cli.api_client import ApiClient, HttpAnswer
from forewarn.cli.invocation import Invocation
from forewarn.cli.service_address import SOCKET_NAME
from forewarn.store import SqliteStore
from forewarn.store.purpose import StorePurpose, mark_purpose
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply


def error(code: str, status: int) -> ScriptedReply:
    return json_reply({"error": {"code": code, "message": f"a sentence about {code}"}}, status=status)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [("Rejected", 400, 2), ("NotFound", 404, 2), ("Refused", 409, 2), ("Conflict", 409, 2), ("Unavailable", 503, 3),
     ("TooManyRequests", 429, 3), ("Internal", 500, 1)],
)  # fmt: skip
def test_each_error_has_an_exit_code_and_prints_only_its_message(
    command: Any, code: str, status: int, expected: int
) -> None:
    with ScriptedServer(error(code, status), path=command.data / SOCKET_NAME):
        assert command.refused("events", code=expected) == f"a sentence about {code}"


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [("Rejected", 400, 2), ("NotFound", 404, 2), ("Refused", 409, 2), ("Conflict", 409, 2), ("Unavailable", 503, 3),
     ("TooManyRequests", 429, 3), ("Internal", 500, 1)],
)  # fmt: skip
def test_an_error_in_json_is_one_document(command: Any, code: str, status: int, expected: int) -> None:
    with ScriptedServer(error(code, status), path=command.data / SOCKET_NAME):
        message = command.refused("events", "--json", code=expected)
    assert json.loads(message) == {"error": {"code": code, "message": f"a sentence about {code}"}}


def test_a_usage_error_in_json_is_one_document(command: Any) -> None:
    for arguments in (["restart", "--bogus", "--json"], ["--json", "nosuch"], ["events", "--json", "--limit", "x"]):
        error = json.loads(command.refused(*arguments))["error"]
        assert error["code"] == "Rejected"
        assert "--help`" in error["message"]
    assert json.loads(command.refused("events", "--json", code=3))["error"]["code"] == "Unavailable"


def test_problems_of_a_file_in_json_have_their_lines(lab: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[[vms]]\nnme = "a"\n')
    for data in (str(lab.data), "/nowhere"):
        error = json.loads(lab.refused("fleet", "check", str(bad), "--json", "--data", data))["error"]
        assert error["code"] == "Rejected"
        assert 2 in [problem["line"] for problem in error["problems"]]
        assert set(error["problems"][0]) == {"line", "message", "remedy"}


@pytest.mark.parametrize(
    ("reply", "code", "sentence"),
    [
        (ScriptedReply(resets=True), 3, "was lost: try again"),
        (ScriptedReply(body=b"<html>"), 1, "answered status 200 without a JSON object: see its log"),
        (ScriptedReply(status=502, body=b"[]"), 1, "answered status 502 without a JSON object: see its log"),
        (json_reply({}, status=500), 1, "answered status 500 without a reason: see its log"),
    ],
    ids=["closed", "no JSON", "no object", "no reason"],
)
def test_an_invalid_answer_of_the_service_is_reported(
    command: Any, reply: ScriptedReply, code: int, sentence: str
) -> None:
    with ScriptedServer(reply, path=command.data / SOCKET_NAME):
        assert command.refused("events", code=code).endswith(sentence)


def test_a_leftover_socket_is_no_service(command: Any) -> None:
    with ScriptedServer(ScriptedReply(), path=command.data / SOCKET_NAME):
        pass
    assert "start one with `forewarn up`" in command.refused("events", code=3)


def test_a_service_that_accepts_no_more_connections_is_not_taken_for_a_stopped_one(command: Any) -> None:
    path = str(command.data / SOCKET_NAME)
    with socket.socket(socket.AF_UNIX) as hanging, socket.socket(socket.AF_UNIX) as waiting:
        hanging.bind(path)
        hanging.listen(0)
        waiting.connect(path)  # fills the queue, from which nothing is accepted
        message = command.refused("events", code=3)
    assert message == (
        f"the forewarn service in {command.data} accepts no connection now: try again, "
        "and look at its log if this persists"
    )


def test_doctor_checks_the_machine_when_no_service_runs(command: Any) -> None:
    result = command("doctor", "--json")
    checks = json.loads(result.stdout)["checks"]
    assert result.exit_code == 3
    assert {check["name"]: check["ok"] for check in checks}["python"] is True
    assert (checks[-1]["name"], checks[-1]["ok"]) == ("service", False)
    assert "start one with `forewarn up`" in command("doctor").stdout


@pytest.mark.parametrize(("purpose", "start"), [(StorePurpose.LAB, "up"), (StorePurpose.PRODUCTION, "serve")])
def test_commands_name_the_command_that_starts_a_stopped_store(command: Any, purpose: StorePurpose, start: str) -> None:
    async def write_store() -> None:
        store = SqliteStore.open(command.data / "forewarn.db")
        await mark_purpose(store, purpose)
        await store.close()

    asyncio.run(write_store())
    for options, given in (((), ""), (("--data", str(command.data)), f" --data {command.data}")):
        checks = json.loads(command("doctor", "--json", *options).stdout)["checks"]
        assert checks[-1]["remedy"] == f"start one with `forewarn {start}{given}`"
        assert command.refused("events", *options, code=3) == (
            f"no forewarn service answers in {command.data}: start one with `forewarn {start}{given}`"
        )


def test_doctor_checks_a_production_store_without_the_needs_of_a_lab(command: Any) -> None:
    async def write_store() -> None:
        store = SqliteStore.open(command.data / "forewarn.db")
        await mark_purpose(store, StorePurpose.PRODUCTION)
        await store.close()

    asyncio.run(write_store())
    checks = json.loads(command("doctor", "--json").stdout)["checks"]
    assert "loopback" not in {check["name"] for check in checks}


@pytest.mark.parametrize("missing", ["msgspec", "sqlalchemy"])
def test_a_command_without_the_server_extra_still_says_that_no_service_runs(command: Any, missing: str) -> None:
    result = run_without(missing, "events", data=command.data)
    assert (result.returncode, result.stderr) == (
        3,
        f"no forewarn service answers in {command.data}: start one with `forewarn up`\n",
    )


def test_doctor_exits_with_1_when_a_check_fails(command: Any) -> None:
    checks = [{"name": "disk", "ok": False, "text": "1 MiB free", "remedy": "make room"}]
    with ScriptedServer(json_reply({"checks": checks}), path=command.data / SOCKET_NAME):
        result = command("doctor")
    assert result.exit_code == 1
    assert "bad  disk        1 MiB free" in result.stdout
    assert f"ok   service     it answers in {command.data}" in result.stdout
    assert "make room" in result.stdout


def run_without(missing: str, *arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.modules[{missing!r}] = None; from forewarn.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "FOREWARN_DATA": str(data)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_click_or_rich_the_command_says_which_extra_to_install(data: Path, missing: str) -> None:
    result = run_without(missing, "events", data=data)
    assert result.returncode == 2
    assert result.stderr == (
        "the forewarn command needs click and rich: pip install 'forewarn[agent]' for use inside a VM, "
        "or 'forewarn[server]' for the service\n"
    )


@pytest.mark.parametrize("arguments", [["up"], ["serve"], ["restore", __file__]], ids=["up", "serve", "restore"])
def test_the_service_itself_needs_the_server_extra(data: Path, arguments: list[str]) -> None:
    result = run_without("sqlalchemy", *arguments, data=data)
    assert result.returncode == 2
    assert result.stderr == (
        f"`forewarn {arguments[0]}` needs sqlalchemy, which is not installed: pip install 'forewarn[server]'\n"
    )


def test_guest_commands_need_only_the_agent_extra(data: Path) -> None:
    with ScriptedServer(json_reply({"DocumentIncarnation": 1, "Events": []})) as server:
        result = run_without("msgspec", "guest", "events", "--endpoint", server.url, data=data)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion_script(command: Any, shell: str) -> None:
    assert "_FOREWARN_COMPLETE" in command.good("completion", shell)
    assert command.json("completion", shell)["shell"] == shell


def test_completion_offers_the_names_of_the_service(lab: Any) -> None:
    arguments = {"_FOREWARN_COMPLETE": "bash_complete", "COMP_WORDS": "forewarn restart db", "COMP_CWORD": "2"}
    assert lab("", **arguments).stdout.split() == ["plain,db-0", "plain,db-1"]


def test_completion_without_a_service_offers_nothing(command: Any) -> None:
    arguments = {"_FOREWARN_COMPLETE": "bash_complete", "COMP_WORDS": "forewarn explain x", "COMP_CWORD": "2"}
    assert command("", **arguments).stdout.strip() == ""


class SilentTransport:
    """A service that does not answer; records how long each request would have waited."""

    location = "in /nowhere"

    def __init__(self) -> None:
        self.timeouts_s: list[float] = []

    def send(self, method: str, target: str, payload: bytes | None, timeout_s: float, headers: object) -> HttpAnswer:
        self.timeouts_s.append(timeout_s)
        raise TimeoutError


COMPLETIONS = [name for name in vars(completion) if name.endswith(("_names", "_ids", "_kinds"))]


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completion_waits_for_a_service_that_hangs_for_two_seconds_only(name: str) -> None:
    call, transport = Invocation(), SilentTransport()
    call.api = ApiClient(transport)
    context = click.Context(click.Command("test"), obj=call)
    assert getattr(completion, name)(context, click.Argument(["name"]), "") == []
    assert transport.timeouts_s == [2.0]


def test_ctrl_c_while_the_command_loads_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    result = subprocess.run(
        [sys.executable, "-m", "forewarn.cli", "events"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")
