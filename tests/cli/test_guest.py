"""The guest commands: a VM's events from its own metadata endpoint."""

import json
from dataclasses import replace
from typing import Any

import pytest

from forewarn.base.times import parse_time
from forewarn.cli.guest import complete_event_id
from forewarn.errors import NotFound, Rejected
from forewarn.protocol.codec import ReceivedEvent
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
EVENT = {
    "EventId": ID,
    "EventStatus": "Scheduled",
    "EventType": "Freeze",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0"],
    "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
    "Description": "Host server is undergoing maintenance.",
    "EventSource": "Platform",
    "DurationInSeconds": 9,
}
BUSY = json_reply({"DocumentIncarnation": 2, "Events": [EVENT]}, headers=(("Date", "Mon, 19 Sep 2016 18:14:47 GMT"),))
NAME = ScriptedReply(body=b"web-0")


def test_events_are_shown_with_the_time_left_by_the_services_clock(command: Any) -> None:
    """Spec §7.2, §12."""
    with ScriptedServer(BUSY, NAME) as server:
        text = command.good("guest", "events", "--endpoint", server.url)
    assert ID in text
    assert "(in 15m)" in text
    assert "web-0  this VM" in text
    assert "9s" in text


def test_guest_events_prints_one_json_document(command: Any) -> None:
    with ScriptedServer(BUSY, NAME) as server:
        view = command.json("guest", "events", "--endpoint", server.url)
    assert (view["name"], view["incarnation"]) == ("web-0", 2)
    (event,) = view["events"]
    assert event["affects_this_vm"] is True
    assert parse_time(event["not_before"]) - parse_time(view["now"]) == 900


def test_events_are_shown_even_if_the_endpoint_does_not_name_the_vm(command: Any) -> None:
    with ScriptedServer(BUSY, json_reply({"error": "Not found"}, status=404)) as server:
        view = command.json("guest", "events", "--endpoint", server.url)
    assert (view["name"], view["events"][0]["affects_this_vm"]) == (None, None)


def test_the_environment_may_name_the_endpoint(command: Any) -> None:
    """Spec §2.5."""
    with ScriptedServer(json_reply({"DocumentIncarnation": 1, "Events": []})) as server:
        text = command.good("guest", "events", FOREWARN_ENDPOINT=server.url)
    assert text == "No event is pending for this VM. `forewarn guest watch` waits for one.\n"


def test_an_event_is_approved_by_the_beginning_of_its_id(command: Any) -> None:
    with ScriptedServer(BUSY, ScriptedReply()) as server:
        assert command.good("guest", "approve", "c706", "--endpoint", server.url) == f"Approved {ID}.\n"
    assert json.loads(server.requests[1].body) == {"StartRequests": [{"EventId": ID}]}


def test_watching_prints_one_json_document_per_change(command: Any) -> None:
    """The command ends here only because the service no longer knows the VM (spec §10)."""
    gone = json_reply({"error": "Not found"}, status=404)
    for arguments in (["--json"], []):
        with ScriptedServer(replace(BUSY, headers=(("ETag", '"1-2"'),)), NAME, gone) as server:
            result = command("guest", "watch", "--endpoint", server.url, *arguments)
        assert result.exit_code == 2
        assert "does not know this VM" in result.stderr
        assert ID in result.stdout
        assert not arguments or json.loads(result.stdout)["incarnation"] == 2


def test_watching_does_not_suggest_watching(command: Any) -> None:
    quiet = ScriptedReply(body=b'{"DocumentIncarnation":1,"Events":[]}', headers=(("ETag", '"1-1"'),))
    with ScriptedServer(quiet, NAME, json_reply({"error": "Not found"}, status=404)) as server:
        result = command("guest", "watch", "--endpoint", server.url)
    assert result.stdout.splitlines() == ["incarnation 1", "No event is pending for this VM.", ""]


@pytest.mark.parametrize("arguments", [["events"], ["approve", ID]])
def test_an_endpoint_that_does_not_answer_exits_with_3(command: Any, arguments: list[str]) -> None:
    with ScriptedServer(ScriptedReply()) as server:
        url = server.url
    assert command.refused("guest", *arguments, "--endpoint", url, code=3).startswith(f"nothing answers at {url} (")


def test_a_bad_endpoint_exits_with_2(command: Any) -> None:
    assert "is not a plain HTTP address" in command.refused("guest", "events", "--endpoint", "https://x")
    assert "is not a plain HTTP address" in command.refused("guest", "watch", "--endpoint", "https://x")


def test_an_id_must_begin_exactly_one_event() -> None:
    listed = (ReceivedEvent(id="ABCD1"), ReceivedEvent(id="ABCD2"))
    assert complete_event_id("abcd1", listed) == "ABCD1"
    assert complete_event_id(ID.lower(), listed) == ID
    with pytest.raises(Rejected, match="matches 2 events, ABCD1, ABCD2: give more characters"):
        complete_event_id("abcd", listed)
    with pytest.raises(Rejected, match="too short"):
        complete_event_id("abc", listed)
    with pytest.raises(NotFound, match="no pending event begins with 'ffff'"):
        complete_event_id("ffff", listed)
