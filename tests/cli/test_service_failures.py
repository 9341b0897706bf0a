"""A service in trouble, and a machine with half of what is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forewarn.cli.service_address import SOCKET_NAME
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply


def error(code: str, status: int) -> ScriptedReply:
    return json_reply({"error": {"code": code, "message": f"a sentence about {code}"}}, status=status)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [("Rejected", 400, 2), ("NotFound", 404, 2), ("Refused", 409, 2), ("Conflict", 409, 2), ("Unavailable", 503, 3),
     ("Internal", 500, 1)],
)  # fmt: skip
def test_each_error_has_an_exit_code_and_is_told_as_its_message_only(
    command: Any, code: str, status: int, expected: int
) -> None:
    with ScriptedServer(error(code, status), path=command.data / SOCKET_NAME):
        assert command.refused("events", code=expected) == f"a sentence about {code}"


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [("Rejected", 400, 2), ("NotFound", 404, 2), ("Refused", 409, 2), ("Conflict", 409, 2), ("Unavailable", 503, 3),
     ("Internal", 500, 1)],
)  # fmt: skip
def test_a_program_is_told_of_an_error_in_one_document(command: Any, code: str, status: int, expected: int) -> None:
    with ScriptedServer(error(code, status), path=command.data / SOCKET_NAME):
        told = command.refused("events", "--json", code=expected)
    assert json.loads(told) == {"error": {"code": code, "message": f"a sentence about {code}"}}


def test_what_is_typed_wrong_is_told_to_programs_as_well(command: Any) -> None:
    for words in (["restart", "--bogus", "--json"], ["--json", "nosuch"], ["events", "--json", "--limit", "x"]):
        error = json.loads(command.refused(*words))["error"]
        assert error["code"] == "Rejected"
        assert "--help`" in error["message"]
    assert json.loads(command.refused("events", "--json", code=3))["error"]["code"] == "Unavailable"


def test_a_program_is_told_each_problem_of_a_file_with_its_line(lab: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[[vms]]\nnme = "a"\n')
    for data in (str(lab.data), "/nowhere"):
        error = json.loads(lab.refused("fleet", "check", str(bad), "--json", "--data", data))["error"]
        assert error["code"] == "Rejected"
        assert 2 in [problem["line"] for problem in error["problems"]]
        assert set(error["problems"][0]) == {"line", "what", "remedy"}


@pytest.mark.parametrize(
    ("reply", "code", "sentence"),
    [
        (ScriptedReply(resets=True), 3, "broke off its answer: try again"),
        (ScriptedReply(body=b"<html>"), 1, "answered status 200 with what is no JSON object: see its log"),
        (ScriptedReply(status=502, body=b"[]"), 1, "answered status 502 with what is no JSON object: see its log"),
        (json_reply({}, status=500), 1, "answered status 500 without a reason: see its log"),
    ],
    ids=["closed", "no JSON", "no object", "no reason"],
)
def test_an_answer_that_makes_no_sense_is_told(command: Any, reply: ScriptedReply, code: int, sentence: str) -> None:
    with ScriptedServer(reply, path=command.data / SOCKET_NAME):
        assert command.refused("events", code=code).endswith(sentence)


def test_a_socket_that_nobody_serves_any_more_is_no_service(command: Any) -> None:
    with ScriptedServer(ScriptedReply(), path=command.data / SOCKET_NAME):
        pass
    assert "start one with `forewarn up`" in command.refused("events", code=3)


def test_the_doctor_looks_from_outside_when_there_is_no_service(command: Any) -> None:
    result = command("doctor", "--json")
    checks = json.loads(result.stdout)["checks"]
    assert result.exit_code == 3
    assert {check["name"]: check["ok"] for check in checks}["python"] is True
    assert (checks[-1]["name"], checks[-1]["ok"]) == ("service", False)
    assert "start one with `forewarn up`" in command("doctor").stdout


def test_the_doctor_exits_with_1_when_something_is_bad(command: Any) -> None:
    checks = [{"name": "disk", "ok": False, "text": "1 MiB free", "remedy": "make room"}]
    with ScriptedServer(json_reply({"checks": checks}), path=command.data / SOCKET_NAME):
        result = command("doctor")
    assert result.exit_code == 1
    assert "bad  disk        1 MiB free" in result.stdout
    assert f"ok   service     it answers in {command.data}" in result.stdout
    assert "make room" in result.stdout


def run_without(missing: str, *words: str, data: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.modules[{missing!r}] = None; from forewarn.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
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


@pytest.mark.parametrize("words", [["up"], ["serve"], ["restore", __file__]], ids=["up", "serve", "restore"])
def test_the_service_itself_needs_the_server_extra(data: Path, words: list[str]) -> None:
    result = run_without("sqlalchemy", *words, data=data)
    assert result.returncode == 2
    assert result.stderr == (
        f"`forewarn {words[0]}` needs sqlalchemy, which is not installed: pip install 'forewarn[server]'\n"
    )


def test_a_guest_needs_nothing_of_the_service(data: Path) -> None:
    with ScriptedServer(json_reply({"DocumentIncarnation": 1, "Events": []})) as server:
        result = run_without("msgspec", "guest", "events", "--endpoint", server.url, data=data)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion_script(command: Any, shell: str) -> None:
    assert "_FOREWARN_COMPLETE" in command.good("completion", shell)
    assert command.json("completion", shell)["shell"] == shell


def test_a_tab_offers_the_names_that_the_service_knows(lab: Any) -> None:
    words = {"_FOREWARN_COMPLETE": "bash_complete", "COMP_WORDS": "forewarn restart db", "COMP_CWORD": "2"}
    assert lab("", **words).stdout.split() == ["plain,db-0", "plain,db-1"]


def test_a_tab_without_a_service_offers_nothing(command: Any) -> None:
    words = {"_FOREWARN_COMPLETE": "bash_complete", "COMP_WORDS": "forewarn explain x", "COMP_CWORD": "2"}
    assert command("", **words).stdout.strip() == ""


def test_ctrl_c_while_the_command_is_still_loaded_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    result = subprocess.run(
        [sys.executable, "-m", "forewarn.cli", "events"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")
