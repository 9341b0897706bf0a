"""The event commands: list, approve, withdraw and watch."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from forewarn.cli.event import changed_events, removed_event_ids
from forewarn.cli.output import waiting_reason
from forewarn.cli.request_output import _awaits_approval


def test_an_empty_list_says_what_to_do_next(lab: Any) -> None:
    assert lab.good("events").startswith("No event is pending. Request one: forewarn restart VM")
    assert lab.good("events", "--vm", "web") == "No event of web is pending.\n"


def test_what_comes_next_is_listed_first(lab: Any) -> None:
    def shown(*options: str) -> list[str]:
        return [name for event in lab.json("events", *options)["events"] for name in event["vms"]]

    lab.good("restart", "web")
    lab.good("evict", "spot")
    lab.good("withdraw", lab.json("restart", "db-0")["events"][0]["id"])
    lab.good("clock", "advance", "1s")
    lab.good("withdraw", lab.json("restart", "db-1")["events"][0]["id"])
    assert shown() == ["spot", "web"]
    assert shown("--all") == ["spot", "web", "db-1", "db-0"]
    lab.good("approve", "--vm", "web")
    assert shown() == ["web", "spot"]
    assert [line.split()[3] for line in lab.good("events").splitlines()[1:]] == ["web", "spot"]


def test_an_event_that_is_over_shows_why_it_ended(lab: Any) -> None:
    lab.good("withdraw", lab.json("restart", "web")["events"][0]["id"], "--reason", "later")
    assert [line.split()[-1] for line in lab.good("events", "--all").splitlines()] == ["WHY", "later"]


def test_an_event_id_that_is_too_short_is_refused(lab: Any) -> None:
    assert lab.refused("withdraw", "85") == "'85' is too short for an event's id: give at least 4 characters of it"


def test_the_list_shows_whole_ids_in_a_pipe_and_short_ones_on_a_terminal(lab: Any) -> None:
    lab.good("restart", "web")
    (event,) = lab.json("events")["events"]
    assert event["id"] in lab.good("events")
    shown = lab.good("events", FORCE_COLOR="1")
    assert event["id"] not in shown
    assert event["id"][:8] in shown


def test_colours_are_only_for_terminals_that_want_them(lab: Any) -> None:
    lab.good("restart", "web")
    assert "\x1b[" not in lab.good("events")
    assert "\x1b[33m" in lab.good("events", FORCE_COLOR="1")
    assert "\x1b[33m" not in lab.good("events", FORCE_COLOR="1", NO_COLOR="1")


def test_an_event_is_approved_by_the_beginning_of_its_id_in_any_case(lab: Any) -> None:
    """Spec §4.2: ids are compared without case."""
    event_id = lab.json("restart", "web")["events"][0]["id"]
    assert "Approved." in lab.good("approve", event_id.lower())
    assert lab.json("events")["events"][0]["status"] == "started"


def test_a_withdrawn_event_keeps_its_reason(lab: Any) -> None:
    event_id = lab.json("restart", "web")["events"][0]["id"]
    text = lab.good("withdraw", event_id, "--reason", "not \x1b[31mtoday")
    assert "why           not \ufffd[31mtoday" in text
    assert lab.json("events")["events"] == []
    (over,) = lab.json("events", "--all")["events"]
    assert over["ending"] == "withdrawn"
    assert "withdrawn" in lab.good("events", "--all")


def test_events_can_be_narrowed_to_a_vm(lab: Any) -> None:
    lab.good("restart", "web", "spot")
    assert len(lab.json("events", "--vm", "web")["events"]) == 1


def view(event_id: str, **facts: Any) -> dict[str, Any]:
    return {"id": event_id, "status": "scheduled", "approved_at": None, "ending": None, **facts}


def test_watching_finds_new_changed_and_removed_events() -> None:
    before = [view("A"), view("B"), view("C")]
    after = [view("A"), view("B", status="started"), view("D")]
    assert [event["id"] for event in changed_events(before, after)] == ["B", "D"]
    assert removed_event_ids(before, after) == ["C"]


def started(data: Path, *arguments: str) -> subprocess.Popen[str]:
    code = "from forewarn.cli import main; import sys; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "FOREWARN_DATA": str(data), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_watching_events_in_json_gives_one_document_per_change_until_it_is_interrupted(lab: Any) -> None:
    with started(lab.data, "events", "--watch", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["events"] == []
        event_id = lab.json("restart", "web")["events"][0]["id"]
        assert json.loads(process.stdout.readline())["events"][0]["id"] == event_id
        lab.good("withdraw", event_id)
        assert json.loads(process.stdout.readline())["events"] == []
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read().strip() == ""


def test_watching_events_in_a_pipe_gives_one_line_per_change(lab: Any) -> None:
    event_id = lab.json("restart", "web")["events"][0]["id"]
    with started(lab.data, "events", "--watch") as process:
        assert process.stdout is not None
        assert "scheduled  Reboot of web" in process.stdout.readline()
        lab.good("withdraw", event_id, "--reason", "later")
        assert f"{event_id}  withdrawn  Reboot of web: later" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_watching_the_history_follows_it(lab: Any) -> None:
    with started(lab.data, "history", "--watch", "--limit", "1", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        lab.good("restart", "web")
        assert json.loads(process.stdout.readline())["seq"] > first["seq"]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_a_reader_that_closes_the_pipe_early_is_no_error(lab: Any) -> None:
    lab.good("restart", "web")
    for arguments in (("history", "--watch"), ("history", "--watch", "--json")):
        with started(lab.data, *arguments) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            lab.json("clock", "advance", "1s")
            lab.json("fleet", "show")
            for _ in range(3):  # enough writes to notice that the reader is gone
                if process.poll() is None:
                    lab.json("approve", lab.json("restart", "quick", "--json")["events"][0]["id"])
                    lab.json("clock", "advance", "1h")
            process.wait(60)
            assert process.stderr.read() == ""


def test_a_started_event_shows_what_the_hypervisor_reports_about_it() -> None:
    done = {"vm": "web", "ok": True, "note": "done"}
    for note, text in (("43 %, 120 MiB left", "migrate of db: 43 %, 120 MiB left"), ("", "migrate of db")):
        acts = [done, {"vm": "db", "ok": None, "note": note}]
        event = view("A", status="started", verb="migrate", acts=acts, waits_for=None)
        assert waiting_reason(event, now=0.0) == text


def test_no_approval_is_offered_for_a_recommendation_which_nothing_starts() -> None:
    """Spec §14.4."""
    assert _awaits_approval({"approved_at": None, "kind": "Preempt"})
    assert not _awaits_approval({"approved_at": 1.0, "kind": "Preempt"})
    assert not _awaits_approval({"approved_at": None, "kind": "SpotRebalanceRecommendation"})
