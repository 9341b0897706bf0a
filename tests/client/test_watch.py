"""Watching with both clients: at least once, over crashes, outages, resets and reboots (spec §4, §11)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forewarn.client import Change, Client, Gone, Outcome, Scheduled, Started
from forewarn.client.cursor import load_cursor
from forewarn.client.effects import Flow, YieldItem
from forewarn.client.watch import WatchOptions
from forewarn.errors import Rejected
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

NAME = ScriptedReply(body=b"web-0")
DATE = ("Date", "Mon, 19 Sep 2016 18:14:47 GMT")
Driver = Callable[..., Any]


def document(incarnation: int, short_forms: str = "", *, epoch: int | None = 1) -> ScriptedReply:
    """`A B*` means: A is scheduled and B has started, both for web-0."""
    events = [
        {
            "EventId": word.strip("*"),
            "EventStatus": "Started" if "*" in word else "Scheduled",
            "EventType": "Reboot",
            "Resources": ["web-0"],
            "NotBefore": "" if "*" in word else "Mon, 19 Sep 2016 18:29:47 GMT",
        }
        for word in short_forms.split()
    ]
    tag = () if epoch is None else (("ETag", f'"{epoch}-{incarnation}"'),)
    return json_reply({"DocumentIncarnation": incarnation, "Events": events}, headers=(DATE, *tag))


def short_forms(changes: list[Change]) -> list[str]:
    return [f"{change.event.id} {type(change).__name__}" for change in changes]


def test_a_watch_yields_each_change_of_an_event(driver: Driver) -> None:
    """Spec §6."""
    with ScriptedServer(document(1), document(2, "A"), document(3, "A*"), document(4)) as server:
        scheduled, started, gone = driver(server.url).take(3, "watch")
    assert isinstance(scheduled, Scheduled)
    assert scheduled.left_s == 900
    assert isinstance(started, Started)
    assert not started.first
    assert isinstance(gone, Gone)
    assert gone.outcome is Outcome.FINISHED


def test_only_changes_that_were_not_handled_are_delivered_again(driver: Driver, tmp_path: Path) -> None:
    """The last change was delivered, but its handling was interrupted."""
    path = tmp_path / "cursor"
    with ScriptedServer(document(4, "A B C")) as server:
        assert short_forms(driver(server.url).take(2, "watch", path)) == ["A Scheduled", "B Scheduled"]
        assert short_forms(driver(server.url).take(2, "watch", path)) == ["B Scheduled", "C Scheduled"]
        assert short_forms(driver(server.url).take(1, "watch", path)) == ["C Scheduled"]


def test_done_handles_a_change_before_the_next_is_requested(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "cursor"
    with ScriptedServer(document(3, "A B")) as server:
        driver(server.url).take(1, "watch", path, handle=lambda change: change.done())
        assert short_forms(driver(server.url).take(1, "watch", path)) == ["B Scheduled"]


def test_done_twice_and_the_next_change_handle_one_change_only(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "cursor"

    def twice(change: Change) -> None:
        if change.event.id == "A":
            change.done()
            change.done()

    with ScriptedServer(document(4, "A B C")) as server:
        driver(server.url).take(2, "watch", path, handle=twice)
        assert short_forms(driver(server.url).take(2, "watch", path)) == ["B Scheduled", "C Scheduled"]


def test_a_change_is_delivered_again_unchanged(driver: Driver, tmp_path: Path) -> None:
    """The incarnation shows a withdrawal only once."""
    path = tmp_path / "cursor"
    with ScriptedServer(document(2, "A"), document(3), document(4, "B")) as server:
        (_, gone) = driver(server.url).take(2, "watch", path)
    with ScriptedServer(document(9, "B*")) as server:
        again, started = driver(server.url).take(2, "watch", path)
    assert gone.outcome is again.outcome is Outcome.WITHDRAWN
    assert short_forms([again, started]) == ["A Gone", "B Started"]


def test_changes_between_two_watches_are_delivered(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "cursor"
    with ScriptedServer(document(2, "A"), document(3, "A B")) as server:
        driver(server.url).take(2, "watch", path, handle=lambda change: change.done())
    with ScriptedServer(document(7, "B* C")) as server:
        assert short_forms(driver(server.url).take(3, "watch", path)) == ["A Gone", "B Started", "C Scheduled"]


def test_after_a_reboot_an_event_that_rebooted_this_vm_has_finished(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "cursor"
    with ScriptedServer(document(2, "A")) as server:
        driver(server.url, boot_id=lambda: "one").take(1, "watch", path, handle=lambda change: change.done())
    with ScriptedServer(document(1, epoch=2), NAME) as server:
        (gone,) = driver(server.url, boot_id=lambda: "two").take(1, "watch", path)
    assert gone.outcome is Outcome.FINISHED


def test_a_damaged_cursor_is_replaced_with_a_warning(
    driver: Driver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cursor"
    path.write_bytes(b"{")
    with ScriptedServer(document(2, "A")) as server:
        assert short_forms(driver(server.url).take(1, "watch", str(path))) == ["A Scheduled"]
        assert short_forms(driver(server.url).take(1, "watch", str(path))) == ["A Scheduled"]
    assert [record.getMessage() for record in caplog.records] == [
        f"the cursor {str(path)!r} is not used, because it is damaged (JSONDecodeError): changes may be delivered again"
    ]


def test_an_unusable_cursor_path_is_rejected_at_the_start(driver: Driver, tmp_path: Path) -> None:
    with ScriptedServer(document(1)) as server, pytest.raises(Rejected, match="cannot be written"):
        driver(server.url).take(1, "watch", tmp_path / "absent" / "cursor")
    assert server.requests == []


def test_a_cursor_that_becomes_unwritable_does_not_stop_the_watch(
    driver: Driver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "place"
    place.mkdir()

    def make_directory_unwritable(change: Change) -> None:
        if place.exists():
            (place / "cursor").unlink()
            place.rmdir()

    with ScriptedServer(document(2, "A"), document(3, "A*")) as server:
        changes = driver(server.url).take(2, "watch", place / "cursor", handle=make_directory_unwritable)
    assert short_forms(changes) == ["A Scheduled", "A Started"]
    assert "use another file; handled changes may be delivered again" in caplog.text


def test_outages_and_faults_between_documents_yield_no_changes(driver: Driver) -> None:
    """Spec §11."""
    faults = (
        ScriptedReply(status=410),
        ScriptedReply(resets=True),
        ScriptedReply(),
        ScriptedReply(status=429),
        ScriptedReply(status=500),
        ScriptedReply(body=b"<p>"),
        ScriptedReply(body=b"{}"),
        json_reply({"error": "Not found"}),
        json_reply({"DocumentIncarnation": 9, "Events": None}),
        json_reply({"DocumentIncarnation": 9, "Events": "none"}),
        json_reply({"DocumentIncarnation": 9, "Events": [{}]}),
        json_reply({"DocumentIncarnation": "nine", "Events": []}),
        json_reply({"Events": []}),
    )
    with ScriptedServer(document(2, "A"), *faults, document(2, "A"), *faults, document(3, "A*")) as server:
        assert short_forms(driver(server.url).take(2, "watch")) == ["A Scheduled", "A Started"]


def half_document(incarnation: int, short_forms: str) -> ScriptedReply:
    """A document with an element that is not an event."""
    whole = json.loads(document(incarnation, short_forms).body)
    return json_reply({**whole, "Events": [*whole["Events"], {}]}, headers=(DATE, ("ETag", f'"1-{incarnation}"')))


def test_an_unusable_element_ends_no_event_and_hides_no_other(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    half = half_document(4, "B C")
    with ScriptedServer(document(3, "A B"), half, half, document(5, "B C")) as server:
        changes = driver(server.url).take(4, "watch")
    assert short_forms(changes) == ["A Scheduled", "B Scheduled", "C Scheduled", "A Gone"]
    assert [request.header_values("if-none-match") for request in server.requests] == [(), ('"1-3"',), (), ()]
    assert [record.getMessage() for record in caplog.records] == [
        "1 of the 3 elements of the document cannot be used: no event counts as over until a whole document comes"
    ]


def test_a_stale_document_yields_no_changes(driver: Driver) -> None:
    """Spec §11: up to a minute stale."""
    with ScriptedServer(document(2, "A"), document(1), document(2, "A"), document(3, "A*")) as server:
        assert short_forms(driver(server.url).take(2, "watch")) == ["A Scheduled", "A Started"]


def test_a_reset_scope_yields_its_new_events(driver: Driver) -> None:
    """Spec §11: incarnation reset after idle."""
    with ScriptedServer(document(9, "A"), document(1, "A", epoch=2), document(2, "A B", epoch=2)) as server:
        assert short_forms(driver(server.url).take(2, "watch")) == ["A Scheduled", "B Scheduled"]


def test_a_lasting_lower_incarnation_is_accepted_after_a_minute(driver: Driver) -> None:
    now = iter(range(0, 10_000, 10))
    with ScriptedServer(
        document(9, "A", epoch=None), document(5, "B", epoch=None), document(5, "B", epoch=None)
    ) as server:
        changes = driver(server.url, clock=lambda: float(next(now))).take(3, "watch")
    assert short_forms(changes) == ["A Scheduled", "B Scheduled", "A Gone"]
    assert changes[2].outcome is Outcome.UNKNOWN


def test_a_server_with_long_polls_is_polled_again_at_once(driver: Driver) -> None:
    """Spec §4.4."""
    held = ScriptedReply(status=304, headers=(("ETag", '"1-1"'), ("Preference-Applied", "wait=10")))
    with ScriptedServer(document(1), held, held, document(2, "A")) as server:
        one = driver(server.url)
        one.take(1, "watch")
    assert max(one.pauses) < 1
    assert [request.header_values("prefer") for request in server.requests] == [(), *[("wait=10",)] * 3]


def test_a_server_without_long_polls_is_polled_once_a_second(driver: Driver) -> None:
    """Spec §8.5."""
    empty, busy = document(1, epoch=None), document(2, "A", epoch=None)
    with ScriptedServer(empty, empty, empty, busy) as server:
        one = driver(server.url)
        one.take(1, "watch")
    assert one.pauses == [1.0, 1.0, 1.0]


def test_a_server_with_etags_and_without_long_polls_is_polled_once_a_second(driver: Driver) -> None:
    same = ScriptedReply(status=304, headers=(("ETag", '"1-1"'),))
    with ScriptedServer(document(1), same, same, document(2, "A")) as server:
        one = driver(server.url)
        one.take(1, "watch")
    assert one.pauses[1:] == [1.0, 1.0]


def test_a_watch_uses_one_connection(driver: Driver) -> None:
    with ScriptedServer(document(1), document(2, "A"), document(3, "A*"), document(4)) as server:
        driver(server.url).take(3, "watch")
    assert server.connections == 1


def test_a_closed_kept_connection_is_reopened_without_a_pause(driver: Driver) -> None:
    closing = ScriptedReply(status=304, headers=(("ETag", '"1-1"'), ("Preference-Applied", "wait=10")), closes=True)
    with ScriptedServer(document(1), closing, document(2, "A")) as server:
        one = driver(server.url)
        one.take(1, "watch")
    assert server.connections == 2
    assert max(one.pauses) < 0.1, "it is not taken for an outage"


def test_a_flow_that_yields_items_cannot_be_asked_for_one_result(driver: Driver) -> None:
    closed: list[bool] = []

    def flow() -> Flow[str]:
        try:
            yield YieldItem(item="lost")
            return "result"
        finally:
            closed.append(True)

    with pytest.raises(TypeError, match="this flow yields items: run it with `iterate_flow`"):
        driver("127.0.0.1").call("run_flow", flow())
    assert closed == [True]
    assert driver("127.0.0.1").take(1, "iterate_flow", flow()) == ["lost"]


def test_in_order_done_handles_all_changes_before_it_too(tmp_path: Path) -> None:
    path = tmp_path / "cursor"
    with ScriptedServer(document(4, "A B C")) as server:
        with closing(Client(server.url).follow(path, WatchOptions(explicit=True, in_order=True))) as changes:
            _, second, _ = (next(changes) for _ in range(3))
            assert short_forms(list(load_cursor(path).unhandled)) == ["A Scheduled", "B Scheduled", "C Scheduled"]
            second.done()
            second.done()
        assert short_forms(list(load_cursor(path).unhandled)) == ["C Scheduled"]
