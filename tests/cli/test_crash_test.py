"""`forewarn crash-test`: attaching to a handler, and the questions that make a claims file."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from forewarn.cli.crash_test_run import show_progress
from forewarn.cli.invocation import Invocation
from forewarn.crash_test.claims import (
    DEFAULT_CLAIMS,
    Approves,
    HandlerClaims,
    HandlerProfile,
    load_claims,
)
from forewarn.crash_test.runner import RunProgress
from forewarn.crash_test.verdict import CaseOutcome
from tests.cli.conftest import Command
from tests.crash_test.results import a_case, a_plan, judged

ATTACH = ("crash-test", "--attach", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        pytest.param((*ATTACH, "--", "true"), "leave its command out", id="command"),
        pytest.param((*ATTACH, "--endpoint-env", "URL"), "leave --endpoint-env and --at-once out", id="endpoint-env"),
        pytest.param((*ATTACH, "--at-once", "2"), "leave --endpoint-env and --at-once out", id="at-once"),
        pytest.param((*ATTACH, "--vm", "a/b"), "--vm 'a/b' cannot name a VM", id="vm"),
        pytest.param((*ATTACH, "--vm", "web-{n}"), "--vm 'web-{n}' cannot name a VM", id="vm pattern"),
        pytest.param((*ATTACH, "--vm", ""), "--vm '' cannot name a VM", id="vm without a name"),
        pytest.param(("crash-test", "--attach", "8080"), "write it like 127.0.0.1:8080", id="address"),
        pytest.param(("crash-test", "--attach", "192.0.2.1:80"), "give another address or port", id="other machine"),
        pytest.param(("crash-test",), "write its command after `--`", id="nothing"),
    ],
)
def test_what_cannot_be_attached_is_rejected_with_one_sentence(
    command: Command, arguments: tuple[str, ...], part: str
) -> None:
    message = command.refused(*arguments)
    assert part in message
    assert message.count("\n") <= 1


def answer_questions(answers: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `forewarn crash-test claims --ask` with a terminal on which somebody types these answers."""
    ours, theirs = pty.openpty()
    os.write(ours, f"{answers}\x04".encode())  # the end of the input: a further question fails
    line = [sys.executable, "-m", "forewarn.cli", "crash-test", "claims", "--ask", *arguments]
    try:
        return subprocess.run(line, stdin=theirs, capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(ours)
        os.close(theirs)


def test_answers_to_questions_make_a_claims_file(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    done = answer_questions("all\nscope\nn\ny\nn\ny\n2h\n90s\n", "--output", str(path))
    assert (done.returncode, done.stdout) == (0, "")
    assert "'all' is not one of" in done.stderr, "a wrong answer is asked for again"
    assert "is not a duration of 0.1 s or more, at most 1 h: write one such as 5s" in done.stderr
    assert load_claims(path, HandlerProfile.SPOT) == HandlerClaims(
        approves=Approves.SCOPE, recovers=True, one_shot=True, polls_every_s=90.0
    )


@pytest.mark.parametrize("profile", [HandlerProfile.SPOT, HandlerProfile.MAINTENANCE])
def test_an_empty_answer_is_the_default_of_the_profile(tmp_path: Path, profile: HandlerProfile) -> None:
    done = answer_questions("\n" * 6, "--profile", profile)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "claims.toml"
    path.write_text(done.stdout)
    other = HandlerProfile.SPOT if profile is not HandlerProfile.SPOT else HandlerProfile.CLUSTER
    assert load_claims(path, other) == DEFAULT_CLAIMS[profile]


def test_without_a_terminal_nobody_is_asked(command: Command) -> None:
    assert "--ask needs a terminal" in command.refused("crash-test", "claims", "--ask")


def test_a_claims_file_is_not_overwritten(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    assert command.good("crash-test", "claims", "--output", str(path)) == ""
    text = path.read_text()
    assert text == command.good("crash-test", "claims")
    assert "exists already" in command.refused("crash-test", "claims", "--profile", "spot", "--output", str(path))
    assert path.read_text() == text
    assert "cannot be written" in command.refused("crash-test", "claims", "--output", str(tmp_path / "no" / "file"))


def test_progress_names_what_runs_what_failed_and_the_time_left_in_80_columns() -> None:
    call = Invocation()
    screen = io.StringIO()
    call.output.stderr = Console(file=screen, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    case = a_case("notice-30s", CaseOutcome.FAIL)
    failed = judged(case, a_plan(case))
    with show_progress(call, 92) as show:
        show(RunProgress(running=["survival-killed-while-preparing", "transport-no-answer", "cost-at-rest"]))
        show(RunProgress(running=["transport-500"], done=[failed]))
    text = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "1/92" in text
    assert "1 failed; running transport-500" in text
    assert max(map(len, re.split("[\r\n]", text))) <= 80
