"""Bad input of `forewarn crash-test`: exit 2 and one sentence with a remedy, before anything runs or is written."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forewarn.cli.root_command import forewarn
from forewarn.crash_test.cases import find_case
from forewarn.crash_test.result import encode_result
from forewarn.crash_test.timeline import EventPublished, ProgramStarted, build_timeline
from forewarn.crash_test.verdict import CaseOutcome
from tests.crash_test.results import EVENT, a_case, a_plan, a_result

CASE_FILE = """
from forewarn.crash_test.case import Case
from forewarn.crash_test.claims import HandlerProfile
from forewarn.crash_test.verdict import Severity

async def script(stage): ...

def case(name):
    return Case(id=name, title="t", reason="r", sources=(), profiles=frozenset(HandlerProfile),
                severity=Severity.NOISE, script=script, demands=())
"""


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty directory with a handler, and let nothing run: it would use this directory for its files."""
    monkeypatch.chdir(tmp_path)
    Path("handler").write_text("#!/bin/sh\ntouch was-run\n")
    Path("handler").chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def crash_test(*arguments: str) -> Result:
    runner = CliRunner(env={"COLUMNS": "200"})
    return runner.invoke(forewarn, ("crash-test", *arguments), prog_name="forewarn", catch_exceptions=False)


def refused(*arguments: str) -> str:
    """Return the one sentence with which the command refused this; nothing was run or written meanwhile."""
    before = sorted(Path().rglob("*"))
    result = crash_test(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert sorted(Path().rglob("*")) == before
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--only notice-30 -- ./handler", "there is no case or area 'notice-30': did you mean notice-30s"),
        ("--only notcie -- ./handler", "there is no case or area 'notcie': did you mean notice"),
        ("--only xyzzy -- ./handler", "there is no case or area 'xyzzy': `forewarn crash-test list` shows all"),
        ("--profile sopt -- ./handler", "'sopt' is not a profile: did you mean spot?"),
        ("--profile xyzzy -- ./handler", "'xyzzy' is not one of 'spot', 'maintenance', 'cluster', 'observer'"),
        ("--only notice-8s -- ./handler", "the case 'notice-8s' does not belong to profile maintenance: use --profile"),
        ("--profile spot --only afterwards -- ./handler", "the cases of area 'afterwards' do not belong to profile"),
        ("-- ./handlre", "the handler './handlre' does not exist: check its path"),
        ("-- handler", "the handler 'handler' is not on the PATH: write ./handler"),
        ("-- ./directory", "the handler './directory' is a directory: name the program in it"),
        ("-- ./text", "the handler './text' is not executable: change that with chmod +x"),
        ("--", "no handler is given: write its command after `--`"),
        ("./handler", "'./handler' is not a command of crash-test: write the command of a handler after `--`"),
        ("--endpoint-env A=B -- ./handler", "--endpoint-env 'A=B' is not the name of a variable"),
        ("--html absent/report.html -- ./handler", "--html: the directory 'absent' does not exist: create it first"),
        ("--junit directory -- ./handler", "--junit: 'directory' is a directory: name a file in it"),
        ("--json text/x -- ./handler", "--json: the directory 'text' does not exist"),
        ("--html x --badge ./x -- ./handler", "--html and --badge name the same file 'x': give two different files"),
        ("--html x --write-baseline x -- ./handler", "--html and --write-baseline name the same file 'x': give two"),
        ("--json /proc/x -- ./handler", "--json: '/proc/x' cannot be written (No such file or directory)"),
        ("--lab-time 0 -- ./handler", "0.0 is not in the range 0.1<=x<=100"),
        ("--at-once 0 -- ./handler", "0 is not in the range 1<=x<=64"),
        ("explain notice-30", "there is no case 'notice-30': did you mean notice-30s"),
        ("replay absent.json --case notice-30s", "the result 'absent.json' cannot be read (No such file or directory)"),
        ("replay text --case notice-30s", "'text' is not the JSON of a crash test"),
        ("replay directory --case notice-30s", "the result 'directory' cannot be read (Is a directory)"),
        ("claims --profile clutser", "'clutser' is not a profile: did you mean cluster?"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(arguments: str, message: str) -> None:
    Path("directory").mkdir()
    Path("text").write_text("no program")
    assert message in refused(*arguments.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("approves = ", "claims.toml:1: this is not TOML"),
        ("aproves = 'none'", "claims.toml:1: the file has no key 'aproves': did you mean 'approves'?"),
        ("approves = 'all'", "approves = 'all' is not one of the choices: write one of"),
        ("approves = true", "approves = True is not one of the choices: write one of"),
        ("prepares = 'yes'", "prepares = 'yes' is neither true nor false: write prepares = true"),
        ("polls-every = 'often'", "polls-every = 'often' is not a duration"),
        ("polls-every = '2h'", "polls-every = '2h' is not a duration of 0.1 s or more, at most 1 h: write"),
        ("polls-every = true", "polls-every = True is not a duration"),
        (None, "the claims file 'claims.toml' cannot be read"),
    ],
)
def test_a_wrong_claims_file_is_refused_in_one_sentence(text: str | None, message: str) -> None:
    if text is not None:
        Path("claims.toml").write_text(text)
    assert message in refused("--claims", "claims.toml", "--", "./handler")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[expected-failures", "expected.toml:1: this is not TOML"),
        ("[expected-failures]\nnotice-30 = 'x'", "there is no case 'notice-30'"),
        ("[expected-failures]\nnotice-30s = ''", "notice-30s has no reason"),
        ("[failures]\nnotice-30s = 'x'", "a baseline has one table [expected-failures]"),
        (None, "the baseline 'expected.toml' cannot be read"),
    ],
)
def test_a_wrong_baseline_is_refused_before_the_run(text: str | None, message: str) -> None:
    if text is not None:
        Path("expected.toml").write_text(text)
    assert message in refused("--baseline", "expected.toml", "--", "./handler")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CASES = [", "own.py:1: this is not Python ('[' was never closed): correct that line"),
        ("import no_such_module", "fails when it is run (ModuleNotFoundError: No module named 'no_such_module')"),
        ("raise SystemExit(3)", "the case file 'own.py' exits when it is run"),
        ("cases = []", "has no list CASES of cases: add CASES = [Case(…), …]"),
        (f"{CASE_FILE}\nCASES = [case('own-a'), case('own-a')]", "there are two cases 'own-a': give the case in your"),
        (f"{CASE_FILE}\nCASES = [case('notice-30s')]", "there are two cases 'notice-30s'"),
        (f"{CASE_FILE}\nCASES = [case('Mine')]", "case 'Mine' has a wrong id: write AREA-NAME in lower case"),
        (None, "the case file 'own.py' cannot be read (No such file or directory)"),
    ],
)
def test_a_wrong_case_file_is_refused_in_one_sentence(text: str | None, message: str) -> None:
    if text is not None:
        Path("own.py").write_text(text)
    assert message in refused("--cases", "own.py", "--only", "own-a", "--", "./handler")


def test_a_replay_names_the_cases_that_the_result_has() -> None:
    Path("result.json").write_bytes(encode_result(a_result(a_case("notice-30s", CaseOutcome.FAIL))))
    assert refused("replay", "result.json", "--case", "notice-30") == (
        "'result.json' has no case 'notice-30': did you mean notice-30s?"
    )
    assert refused("replay", "result.json", "--case", "xyzzy").endswith("it has notice-30s")


@pytest.mark.parametrize(
    ("schema", "message"), [(0, "an older forewarn (schema 0): run"), (99, "a newer forewarn (schema 99): use that")]
)
def test_a_replay_of_another_schema_is_refused(schema: int, message: str) -> None:
    document = json.loads(encode_result(a_result(a_case("notice-30s", CaseOutcome.FAIL))))
    Path("result.json").write_text(json.dumps({**document, "schema": schema}))
    assert message in refused("replay", "result.json", "--case", "notice-30s")


def test_a_replay_needs_the_handler_of_the_result() -> None:
    Path("result.json").write_bytes(encode_result(a_result(a_case("notice-30s", CaseOutcome.FAIL))))
    Path("handler").unlink()
    assert "the handler './handler' does not exist" in refused("replay", "result.json", "--case", "notice-30s")


def test_a_recorded_case_is_judged_again_without_its_handler() -> None:
    Path("result.json").write_bytes(encode_result(a_result(a_case("notice-30s", CaseOutcome.FAIL))))
    Path("handler").unlink()
    result = crash_test("replay", "result.json", "--case", "notice-30s", "--recorded")
    assert result.exit_code in (0, 1), result.output
    assert "notice" in result.stdout


def test_a_replay_whose_outcome_is_unknown_exits_with_3_unless_that_is_allowed() -> None:
    case = find_case("notice-reboot")
    plan = a_plan(case, prepared="", recovered="")
    published = EventPublished(at=10.0, event=EVENT, kind="Reboot", vms=("web-0",), not_before=40.0)
    seen = build_timeline([ProgramStarted(at=0.0, vm="web-0", run=1), published], 60.0)
    Path("result.json").write_bytes(encode_result(a_result(case, plan=plan, timeline=seen)))
    arguments = ("replay", "result.json", "--case", case.id, "--recorded")
    assert crash_test(*arguments).exit_code == 3
    assert crash_test(*arguments, "--allow-unknown").exit_code == 0


def test_errors_are_sentences_with_a_json_file_and_documents_with_json_on_stdout() -> None:
    assert refused("--json", "result.json", "--", "./no").startswith("the handler './no' does not exist")
    error = json.loads(refused("--json", "-", "--", "./no"))["error"]
    assert error["message"].startswith("the handler './no' does not exist")


@pytest.mark.namespaces
def test_a_machine_without_namespaces_is_named_with_the_way_out(tmp_path: Path) -> None:
    limit = "echo 0 > /proc/sys/user/max_pid_namespaces"  # of the user namespace that `unshare` creates
    forewarn_command = f"{sys.executable} -m forewarn.cli crash-test -- ./handler"
    done = subprocess.run(
        ("unshare", "--user", "--map-root-user", "sh", "-c", f"{limit} && exec {forewarn_command}"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("this machine does not allow VMs made of namespaces (")
    assert "--endpoint-env VAR" in line
    assert not (tmp_path / "was-run").exists()
