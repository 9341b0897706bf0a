"""The blocking client against a server that behaves like real ones (spec §11)."""

from collections.abc import Callable
from itertools import islice

import pytest

from forewarn.client import Client
from forewarn.errors import Rejected
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
EMPTY = {"DocumentIncarnation": 1, "Events": []}
EVENT = {
    "EventId": ID,
    "EventStatus": "Scheduled",
    "EventType": "Freeze",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0"],
    "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
}
BUSY = {"DocumentIncarnation": 2, "Events": [EVENT]}


def client_of(server: ScriptedServer, pauses: list[float] | None = None) -> Client:
    sleep: Callable[[float], None] = ([] if pauses is None else pauses).append
    return Client(server.url, sleep=sleep)


def test_events_come_with_the_services_own_time() -> None:
    """Spec §4.2, §12."""
    with ScriptedServer(json_reply(BUSY, headers=(("Date", "Mon, 19 Sep 2016 18:14:47 GMT"),))) as server:
        client = client_of(server)
        (event,) = client.events().events
    assert (event.id, event.kind, event.resources) == (ID, "Freeze", ("web-0",))
    assert event.not_before is not None
    assert client.date is not None
    assert event.not_before - client.date == 900


def test_an_approval_is_posted_and_an_empty_answer_accepts_it() -> None:
    """Spec §5.2."""
    with ScriptedServer(ScriptedReply()) as server:
        client_of(server).approve(ID)
    (request,) = server.requests
    assert request.method == "POST"
    assert request.target == "/metadata/scheduledevents?api-version=2020-07-01"
    assert ID.encode() in request.body


def test_an_approval_without_an_id_is_rejected_before_anything_is_sent() -> None:
    with ScriptedServer(ScriptedReply()) as server, pytest.raises(Rejected, match="no event is named"):
        client_of(server).approve()
    assert server.requests == []


def test_the_vms_own_name_is_requested_as_text() -> None:
    """Spec §2.6."""
    with ScriptedServer(ScriptedReply(body=b"web-0")) as server:
        assert client_of(server).name() == "web-0"
    assert "format=text" in server.requests[0].target


def test_a_rejection_is_raised_at_once() -> None:
    with ScriptedServer(json_reply({"error": "Bad request. no"}, status=400)) as server, pytest.raises(Rejected):
        client_of(server).events()
    assert len(server.requests) == 1


def test_a_watch_yields_the_document_and_then_each_change() -> None:
    """Spec §4.3, §4.4: one client works with a server that holds requests and with one that does not."""
    tag = (("ETag", '"1-1"'),)
    held = ScriptedReply(status=304, headers=(*tag, ("Preference-Applied", "wait=10")))
    with ScriptedServer(json_reply(EMPTY, headers=tag), held, json_reply(BUSY, headers=(("ETag", '"1-2"'),))) as server:
        documents = list(islice(client_of(server).documents(), 2))
    assert [document.incarnation for document in documents] == [1, 2]
    asked = [request.header_values("if-none-match") for request in server.requests]
    assert asked == [(), ('"1-1"',), ('"1-1"',)]
    assert server.requests[1].header_values("prefer") == ("wait=10",)


def test_a_watch_without_long_polls_polls_every_second() -> None:
    """Spec §8.5."""
    pauses: list[float] = []
    with ScriptedServer(json_reply(EMPTY), json_reply(EMPTY), json_reply(EMPTY), json_reply(BUSY)) as server:
        documents = list(islice(client_of(server, pauses).documents(), 2))
    assert [document.incarnation for document in documents] == [1, 2]
    assert pauses == [1.0, 1.0, 1.0]


def test_a_watch_survives_every_fault() -> None:
    """Spec §11."""
    faults = (
        ScriptedReply(status=410),
        ScriptedReply(resets=True),
        ScriptedReply(),
        ScriptedReply(status=429),
        ScriptedReply(status=500),
    )
    with ScriptedServer(*faults, *faults, json_reply(BUSY)) as server:
        (document,) = islice(client_of(server).documents(), 1)
    assert document.incarnation == 2


def test_a_watch_ends_when_the_service_does_not_know_the_vm() -> None:
    """Spec §10."""
    with (
        ScriptedServer(json_reply({"error": "Not found"}, status=404)) as server,
        pytest.raises(Rejected, match="does not know"),
    ):
        next(client_of(server).documents())


def test_the_environment_can_set_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §2.5."""
    with ScriptedServer(json_reply(EMPTY)) as server:
        monkeypatch.setenv("FOREWARN_ENDPOINT", server.url)
        assert Client().events().incarnation == 1
