"""The agent commands: check, dry run, status and explain."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.journal import AgentJournal
from forewarn.agent.model import ApprovalRecord, ApprovalState, EventRecord, StepPhase, StepRun, StepState
from forewarn.client import ReceivedEvent
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
EVENT = {
    "EventId": ID,
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0"],
    "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
    "Description": "Host server is undergoing maintenance.",
    "EventSource": "Platform",
    "DurationInSeconds": 9,
}
BUSY = json_reply({"DocumentIncarnation": 2, "Events": [EVENT]}, headers=(("Date", "Mon, 19 Sep 2016 18:14:47 GMT"),))
QUIET = json_reply({"DocumentIncarnation": 1, "Events": []}, headers=(("Date", "Mon, 19 Sep 2016 18:14:47 GMT"),))
FILE = """
vm = "web-0"
listen = ""
state = "STATE"

[steps.drain]
use = "readiness"
budget = "20s"

[steps.save]
use = "command"
run = ["true"]
budget = "5m"
cut = 1

[[rules]]
name = "reboots"
kinds = ["Reboot"]
steps = ["drain", "save"]
approve = "when-done"
"""
SEEN = EventRecord(
    key=ID,
    event=ReceivedEvent(id=ID, status="Scheduled", kind="Reboot", resources=("web-0",), not_before=1_900.0),
    seen_at=1_000.0,
    boot_id="b1",
    not_before=1_900.0,
    rule="reboots",
    plan=("drain", "save"),
)
DRAINED = StepRun(step="drain", state=StepState.DONE, begun_at=1_000.0, ended_at=1_012.0, text="not ready")
CUT = StepRun(step="save", state=StepState.CUT, begun_at=1_012.0, ended_at=1_012.0, text="no time: 20 s left")
BACK = StepRun(
    step="drain", phase=StepPhase.UNDO, state=StepState.DONE, begun_at=1_100.0, ended_at=1_101.0, text="ready"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(FILE.replace("STATE", str(tmp_path / "state")))
    return path


def keep(tmp_path: Path, *records: EventRecord) -> None:
    (tmp_path / "state").mkdir(exist_ok=True)
    journal = AgentJournal(tmp_path / "state" / "journal.db")
    journal.save(*records)
    journal.close()


def test_a_file_is_checked_and_its_plan_shown_for_three_notices(command: Any, file: Path) -> None:
    lines = command.good("agent", "check", str(file)).splitlines()
    assert lines[0] == f"{file} is valid: 1 rule, 2 steps."
    assert lines[2] == "reboots  Reboot; approved: when-done"
    assert lines[3].split() == ["STEP", "USE", "BUDGET", "15", "MINUTES", "30", "SECONDS", "7", "DAYS"]
    assert lines[4].startswith("drain  readiness  20s     at once, by 5m 25s before  at once, by 25s before")
    assert lines[5].startswith("save   command    5m      at once, by 5m 5s before   cut")


def test_agent_check_takes_its_file_as_argument_or_option(command: Any, file: Path) -> None:
    assert command.good("agent", "check", "--config", str(file)) == command.good("agent", "check", str(file))


def test_agent_check_prints_the_plan_as_json(command: Any, file: Path) -> None:
    (rule,) = command.json("agent", "check", str(file))["rules"]
    assert [step["begins"]["30 seconds"] for step in rule["steps"]] == ["at once, by 25s before", "cut"]


def test_every_mistake_of_an_agent_file_is_shown_with_its_line(command: Any, file: Path) -> None:
    file.write_text(file.read_text().replace('"readiness"', '"readyness"').replace("cut = 1", "cutt = 1"))
    sentences = command.refused("agent", "check", str(file)).splitlines()
    assert len(sentences) == 2
    assert all(sentence.startswith(f"{file}:") for sentence in sentences)
    assert "readiness" in sentences[0]
    refused = command("agent", "check", str(file), "--json")
    assert [problem["line"] for problem in json.loads(refused.stderr)["error"]["problems"]] == [7, 14]


def test_an_invalid_listen_address_is_shown_with_its_line(command: Any, file: Path) -> None:
    file.write_text(file.read_text().replace('listen = ""', 'listen = "9258"'))
    sentence = command.refused("agent", "check", str(file))
    assert sentence == f'{file}:3: listen = \'9258\' is not an address: write "127.0.0.1:9258", or "" for none'


def test_a_damaged_journal_is_repaired_and_the_report_says_what_is_lost(
    command: Any, file: Path, tmp_path: Path
) -> None:
    journal, repair = tmp_path / "state" / "journal.db", ("agent", "repair", "--config", str(file))
    assert "does not exist: there is nothing to repair" in command.refused(*repair)
    keep(tmp_path, SEEN.with_step_run(DRAINED))
    assert command.good(*repair) == f"{journal} is not damaged: nothing was changed.\n"
    with closing(sqlite3.connect(journal)) as db:
        db.execute("UPDATE steps SET state = 'eaten'")
        db.commit()
    for arguments in (("status",), ("explain", ID)):
        refusal = command.refused("agent", *arguments, "--config", str(file))
        assert "is damaged ('eaten' is not a valid StepState)" in refusal
        assert f"run `forewarn agent repair --config {file}`" in refusal
    view = command.json(*repair)
    assert (view["repaired"], view["kept"], view["step_folders"]) == (True, [ID], None)
    assert view["unreadable"] == [
        f"the do of step drain of event {ID}: it counts as failed; it is undone when the event is gone"
    ]
    journal.write_bytes(b"junk " * 2000)
    lines = command.good(*repair).splitlines()
    assert lines[0] == f"{journal} is repaired and has 0 events."
    assert lines[1].startswith(f"The damaged file is {journal}.damaged-")
    assert lines[2].startswith("unreadable  the whole file (file is not a database)")


def test_a_missing_agent_file_is_named(command: Any, tmp_path: Path) -> None:
    for arguments in (["check"], ["run"], ["status"], ["explain", "C706"]):
        missing = str(tmp_path / "nowhere.toml")
        assert f"{missing!r} cannot be read" in command.refused("agent", *arguments, FOREWARN_AGENT_CONFIG=missing)


def test_a_dry_run_shows_what_would_be_done_and_writes_nothing(command: Any, file: Path, tmp_path: Path) -> None:
    with ScriptedServer(BUSY) as server:
        run = ("agent", "run", "--config", str(file), "--endpoint", server.url, "--dry-run", "--once")
        lines = command.good(*run).splitlines()
        view = command.json(*run)
    assert lines == [
        f"event {ID}: Reboot of web-0, 15m left; rule 'reboots'",
        "  would begin drain (readiness, 20s) at once, in 9m 35s at the latest",
        "  would begin save (command, 5m) at once, in 9m 55s at the latest",
        "  would approve it when all steps are done",
    ]
    assert view["events"][0]["steps"] == [line.strip() for line in lines[1:3]]
    assert not (tmp_path / "state").exists()
    assert {request.method for request in server.requests} == {"GET"}


def test_a_dry_run_follows_new_documents(command: Any, file: Path) -> None:
    """The command ends here only because the service no longer knows the VM (spec §10)."""
    tagged = ScriptedReply(body=QUIET.body, headers=(*QUIET.headers, ("ETag", '"1-1"')))
    with ScriptedServer(tagged, BUSY, json_reply({"error": "Not found"}, status=404)) as server:
        result = command("agent", "run", "--config", str(file), "--endpoint", server.url, "--dry-run")
    assert result.exit_code == 2
    assert result.stdout.splitlines()[0] == "No event is pending for web-0: nothing would be done."
    assert result.stdout.splitlines()[1].startswith(f"event {ID}")


def test_without_an_agent_the_status_comes_from_its_journal(command: Any, file: Path, tmp_path: Path) -> None:
    keep(tmp_path, SEEN.with_step_run(DRAINED).with_step_run(CUT))
    text = command.good("agent", "status", "--config", str(file))
    assert "stopped, according to its journal" in text
    assert "no: held by drain for a Reboot" in text
    assert "drain done, save cut" in text
    view = command.json("agent", "status", "--config", str(file))
    assert (view["running"], view["ready"], view["in_maintenance"]) == (False, False, True)
    (event,) = view["events"]
    assert (event["id"], event["notice_promised_s"], event["steps"][1]["do"]["state"]) == (ID, 900, "cut")


@pytest.mark.parametrize("phase", list(StepPhase))
def test_a_step_that_has_begun_is_shown_as_interrupted_when_the_agent_is_stopped(
    command: Any, file: Path, tmp_path: Path, phase: StepPhase
) -> None:
    begun = StepRun(step="drain", phase=phase, state=StepState.BEGUN, begun_at=1_000.0)
    keep(tmp_path, SEEN.with_step_run(DRAINED).with_step_run(begun))
    commands = [("agent", *arguments, "--config", str(file)) for arguments in (("status",), ("explain", ID))]
    for arguments in commands:
        text = command.good(*arguments)
        assert "drain interrupted" in text
        assert "drain running" not in text
    its_journal = AgentJournal(tmp_path / "state" / "journal.db")
    try:
        for arguments in commands:
            assert "drain running" in command.good(*arguments)
    finally:
        its_journal.close()


def test_the_status_comes_from_a_running_agent(command: Any, file: Path, tmp_path: Path) -> None:
    state = {"vm": "web-0", "endpoint": "http://169.254.169.254", "now": 1_000.0, "in_maintenance": False}
    state |= {"ready": True, "holds": [], "events": [], "health": {"ok": True, "text": "", "silent_s": 1.2}}
    with ScriptedServer(json_reply(state)) as server:
        address = server.url.removeprefix("http://")
        file.write_text(file.read_text().replace('listen = ""', f'listen = "{address}"'))
        text = command.good("agent", "status", "--config", str(file))
        assert command.good("agent", "status", "--at", address) == text
        assert command.json("agent", "status", "--at", address)["running"] is True
    assert "running" in text
    assert "ok, answered 1s ago" in text
    assert "No event is in progress." in text
    assert [request.target for request in server.requests] == ["/state"] * 3


def test_an_agent_whose_pages_do_not_answer_is_not_shown_as_stopped(command: Any, file: Path, tmp_path: Path) -> None:
    keep(tmp_path, SEEN)
    its_journal = AgentJournal(tmp_path / "state" / "journal.db")
    try:
        text = command.good("agent", "status", "--config", str(file))
        assert "running, but its HTTP pages do not answer; according to its journal" in text
        assert command.json("agent", "status", "--config", str(file))["running"] is True
    finally:
        its_journal.close()
    assert command.json("agent", "status", "--config", str(file))["running"] is False


def test_an_invalid_agent_address_is_refused(command: Any) -> None:
    sentence = command.refused("agent", "status", "--at", "here")
    assert sentence == "'here' is not an address: give it as 127.0.0.1:9258"


def test_another_server_is_not_taken_for_an_agent(command: Any) -> None:
    with ScriptedServer(json_reply({"hello": 1}), ScriptedReply(body=b"<html>")) as server:
        address = server.url.removeprefix("http://")
        for _ in range(2):
            assert f"the server at {address} is not an agent" in command.refused("agent", "status", "--at", address)
    assert f"no agent answers at {address}" in command.refused("agent", "status", "--at", address, code=3)


def test_without_agent_and_journal_the_status_is_unavailable(command: Any, file: Path) -> None:
    assert "does not exist: start the agent once" in command.refused("agent", "status", "--config", str(file))


@pytest.mark.parametrize("is_without_wal", [False, True], ids=["no bytes", "WAL removed"])
def test_an_empty_journal_is_called_empty_and_not_old(
    command: Any, file: Path, tmp_path: Path, is_without_wal: bool
) -> None:
    journal = tmp_path / "state" / "journal.db"
    journal.parent.mkdir()
    journal.touch()
    if is_without_wal:
        with closing(sqlite3.connect(journal)) as db:
            db.execute("PRAGMA journal_mode = WAL")
        assert journal.stat().st_size
    for arguments in (("status",), ("explain", ID), ("repair",)):
        assert command.refused("agent", *arguments, "--config", str(file)) == (
            f"the journal '{journal}' is empty: put back its file '{journal}-wal' if that was removed, else start the"
            " agent once, which begins a new journal"
        )
    keep(tmp_path)
    assert "No event is in progress." in command.good("agent", "status", "--config", str(file))


def test_agent_explain_reads_the_journal(command: Any, file: Path, tmp_path: Path) -> None:
    approval = ApprovalRecord(state=ApprovalState.SENT, at=1_013.0)
    first = EventRecord(
        key=ID,
        event=SEEN.event,
        seen_at=1_000.0,
        boot_id="b1",
        not_before=1_900.0,
        rule="reboots",
        plan=SEEN.plan,
        step_runs=(DRAINED, CUT, BACK),
        approval=approval,
        started_at=1_020.0,
        gone_at=1_099.0,
        outcome="finished",
        closed=True,
    )
    keep(tmp_path, first)
    text = command.good("agent", "explain", "c706", "--config", str(file))
    lines = [line.strip() for line in text.splitlines()]
    message = [line.split(maxsplit=2)[2] for line in lines[1:] if line[:2].isdigit()]
    assert lines[0] == f"event {ID}: Reboot of web-0"
    assert message == [
        "first seen, a notice of 15m; rule 'reboots'",
        "drain began",
        "drain done after 12s: not ready",
        "save cut: no time: 20 s left",
        "approved",
        "started, after 20s of the 15m announced",
        "gone: finished",
        "undo of drain began",
        "undo of drain done after 1.0s: ready",
    ]
    assert lines[-1] == "now  closed: nothing left to do"
    (explanation,) = command.json("agent", "explain", ID, "--config", str(file))["events"]
    assert explanation["lines"][0]["at"] == "1970-01-01T00:16:40.000Z"


def test_agent_explain_needs_an_unambiguous_event(command: Any, file: Path, tmp_path: Path) -> None:
    keep(tmp_path, SEEN, EventRecord(key="C7069999", event=SEEN.event, seen_at=2.0, boot_id=""))
    config = ("--config", str(file))
    assert "is too short" in command.refused("agent", "explain", "C70", *config)
    assert "matches 2 events" in command.refused("agent", "explain", "C706", *config)
    assert f"begins with 'FFFF': the latest are C7069999, {ID}" in command.refused("agent", "explain", "FFFF", *config)


def test_the_sample_agent_file_is_valid(command: Any) -> None:
    sample = Path(__file__).parents[2] / "deploy" / "agent.toml"
    assert "is valid: 3 rules, 3 steps." in command.good("agent", "check", str(sample))
