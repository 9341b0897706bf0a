"""Replays in virtual time: the same documents at the same pace, with new ids, names and times."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.base.clock import SystemClock
from forewarn.core.replay import KNOWN_EVENT_IDS_S, RecordedAnswer, UploadedRecording
from forewarn.core.request import RequestedOperation, RequestKey
from forewarn.errors import NotFound, Refused, Rejected, Remedy, Unavailable
from forewarn.metadata.workers.publisher import MetadataPublisher, PublisherConfig
from forewarn.protocol.dates import parse_date
from forewarn.store import SqliteStore
from forewarn.store.interface import REPLAY_SCRIPT_PREFIX
from tests.support.world import NOON, World, a_host, a_vm


def listed(document: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(e["EventType"], e["EventStatus"], tuple(e["Resources"])) for e in document["Events"]]


def incarnations(lab: Any) -> list[int]:
    return [document["DocumentIncarnation"] for _, document in lab.seen if isinstance(document, dict)]


def test_a_replay_keeps_the_recorded_pace_and_ends_with_the_document_of_the_scope(
    lab: Any, restart_recording: Any
) -> None:
    """Spec §4.2, §12."""
    lab.start(restart_recording)
    lab.world.advance(100)
    shown = [(at - NOON, document["DocumentIncarnation"], listed(document)) for at, document in lab.seen]
    assert shown == [
        (0, 1, []),
        (5, 2, [("Reboot", "Scheduled", ("web-0",))]),
        (65, 3, [("Reboot", "Started", ("web-0",))]),
        (75, 4, []),
    ]
    assert lab.shown() is None
    assert lab.world.scope("web-0").incarnation == 4


def test_replayed_event_ids_are_new_upper_case_and_stable(lab: Any, restart_recording: Any, make: Any) -> None:
    lab.start(restart_recording)
    lab.world.advance(100)
    ids = {event["EventId"] for _, document in lab.seen for event in document["Events"]}
    assert len(ids) == 1
    assert make.id not in ids
    assert all(len(event_id) == 36 and event_id == event_id.upper() for event_id in ids)


def test_a_replayed_notice_is_as_long_as_the_recorded_one(lab: Any, restart_recording: Any) -> None:
    """Spec §6.3, §12: NotBefore minus Date."""
    lab.start(restart_recording)
    lab.world.advance(30)
    (event,) = lab.shows()["Events"]
    assert parse_date(event["NotBefore"]) == NOON + 5 + 900


def test_a_faster_replay_has_shorter_notices(lab: Any, restart_recording: Any) -> None:
    """So no event starts before its NotBefore unless it did in the recording."""
    lab.start(restart_recording, speed=10)
    lab.world.advance(1)
    (event,) = lab.shows()["Events"]
    assert parse_date(event["NotBefore"]) == NOON + 91  # (5 + 900) / 10, in whole seconds, never less
    lab.world.advance(7)
    assert [at - NOON for at, _ in lab.seen] == [0, 0.5, 6.5, 7.5]


def test_each_loop_of_a_replay_has_its_own_event_ids(lab: Any, restart_recording: Any) -> None:
    lab.start(restart_recording, loops=3)
    lab.world.advance(300)
    ids = [event["EventId"] for _, document in lab.seen for event in document["Events"]]
    assert len(ids) == 6
    assert len(set(ids)) == 3
    assert incarnations(lab) == list(range(1, 11))
    assert [at - NOON for at, _ in lab.seen] == [0, 5, 65, 75, 85, 145, 155, 165, 225, 235]


def test_a_loop_that_ends_with_events_removes_them_from_the_document(lab: Any, make: Any) -> None:
    lab.start(make.recording(make.answer(0.0, make.event(), incarnation=3), ended_s=10.0), loops=2)
    lab.world.advance(30)
    shown = [(at - NOON, document["DocumentIncarnation"], len(document["Events"])) for at, document in lab.seen]
    assert shown == [(0, 1, 0), (0, 2, 1), (10, 3, 0), (10, 4, 1), (20, 5, 0)]


def test_every_vm_of_the_scope_and_no_other_is_shown_a_replay(lab: Any, make: Any) -> None:
    """Spec §7.2, §7.4."""
    lab.start(make.recording(make.answer(0.0, make.event()), ended_s=60.0), "db-0")
    assert lab.shows("db-1") == lab.shows("db-0")
    assert listed(lab.shows("db-1")) == [("Reboot", "Scheduled", ("db-0",))]
    assert lab.shows("web-0")["Events"] == []


def test_a_replay_in_a_narrow_scope_shows_each_vm_the_events_that_name_it(make: Any) -> None:
    """Spec §14.6."""
    facts = {"availability_set": "db", "fault_domain_count": 1, "narrow_delivery": True}
    world = World(vms=[a_vm(f"db-{n}", update_domain=n, **facts) for n in (0, 1, 2)], hosts=[a_host("h1")])
    try:
        recorded = make.recording(
            make.answer(0.0, make.event(), make.event("B", Resources=["other"]), make.event("C", Resources=["third"])),
            ended_s=60.0,
        )
        start = world.control.replays.start(world.vm("db-0"), recorded, who="ann", names={"other": "db-1"})
        world.do(start)
        world.settle()
        shown = MetadataPublisher.open(PublisherConfig(), world.control).published(world.scope("db-0"))
        seen = {vm.name: shown.document_of(vm.key) for vm in world.store.vms()}
        assert {name: [one.resources for one in document.notices] for name, document in seen.items()} == {
            "db-0": [("db-0",)],
            "db-1": [("db-1",)],
            "db-2": [],
        }
        assert len({document.incarnation for document in seen.values()}) == 1
    finally:
        world.close()


def test_each_api_version_shows_the_replayed_events_that_it_knows(lab: Any, make: Any) -> None:
    """Spec §3."""
    lab.start(make.recording(make.answer(0.0, make.event(), make.event("B", EventType="Terminate")), ended_s=60.0))
    assert listed(lab.shows(version="2017-03-01")) == [("Reboot", "Scheduled", ("_web-0",))]
    assert len(lab.shows(version="2019-01-01")["Events"]) == 2


def test_recorded_errors_are_replayed_in_place_of_documents(lab: Any, make: Any) -> None:
    """Spec §11."""
    statuses = (410, 429, 500)
    faults = [RecordedAnswer(at_s=5.0 + n, status=status, body=b"x") for n, status in enumerate(statuses)]
    lab.start(make.recording(make.answer(0.0), *faults, RecordedAnswer(at_s=8.0), make.answer(9.0), ended_s=20.0))
    lab.world.advance(30)
    assert [(at - NOON, shown) for at, shown in lab.seen if not isinstance(shown, dict)] == [
        (5, 410),
        (6, 429),
        (7, 500),
        (8, None),
    ]
    assert lab.world.scope("web-0").incarnation == 1


def test_an_approval_of_a_replayed_event_is_recorded_once_and_changes_nothing(lab: Any, restart_recording: Any) -> None:
    """Spec §5.2, §5.3."""
    lab.start(restart_recording)
    lab.world.advance(10)
    document = lab.shows()
    event_id = document["Events"][0]["EventId"]
    assert lab.world.approve("web-0", event_id) is None
    assert lab.world.approve("web-0", event_id) is None
    assert lab.shows() == document
    (entry,) = lab.world.store.history(event_id=event_id)
    assert (entry.kind, entry.actor, entry.at) == ("approved", "web-0", NOON + 10)
    assert entry.text == "web-0 approved Reboot of web-0, a replayed event: the replay keeps its pace"


def test_a_replayed_event_id_can_be_approved_after_its_event_and_after_the_replay(
    lab: Any, restart_recording: Any
) -> None:
    """Spec §5.2."""
    lab.start(restart_recording)
    lab.world.advance(10)
    event_id = lab.shows()["Events"][0]["EventId"]
    for _ in range(2):
        lab.world.advance(70)
        assert lab.world.approve("web-0", event_id) is None
    lab.world.restart()
    assert lab.world.approve("web-0", event_id) is None
    assert lab.world.store.history(event_id=event_id) == []


def test_a_recorded_event_id_and_one_of_another_scope_are_unknown(lab: Any, restart_recording: Any, make: Any) -> None:
    """Spec §5.2, §7.4: then no part of the request takes effect."""
    lab.start(restart_recording)
    lab.world.advance(10)
    event_id = lab.shows()["Events"][0]["EventId"]
    assert lab.world.approve("web-0", event_id, make.id) == make.id
    assert lab.world.approve("web-1", event_id) == event_id
    assert lab.world.store.history(event_id=event_id) == []


def test_a_replay_continues_after_a_restart(lab: Any, restart_recording: Any) -> None:
    lab.start(restart_recording, loops=2)
    lab.world.advance(30)
    before = lab.shows()
    lab.world.restart()
    lab.listen()
    assert lab.shows() == before
    lab.world.advance(200)
    starts = [
        at - NOON for at, document in lab.seen if [e for e in document["Events"] if e["EventStatus"] == "Started"]
    ]
    assert starts == [65, 145]
    assert incarnations(lab) == list(range(1, 8))


def test_steps_that_came_due_while_the_service_was_down_are_shown_in_order(lab: Any, restart_recording: Any) -> None:
    lab.start(restart_recording)
    lab.world.clock.apply_setting(lab.world.clock.setting_after_jump(NOON + 70))
    lab.world.restart()
    texts = [entry.text for entry in lab.world.store.history() if entry.kind == "replayed"]
    assert [text.removeprefix("web-0 is shown ") for text in texts] == [
        "no events",
        "Reboot of web-0 scheduled",
        "Reboot of web-0 started",
    ]


def test_two_replays_on_one_scope_are_refused(lab: Any, restart_recording: Any) -> None:
    first = lab.start(restart_recording, "db-0")
    with pytest.raises(Refused, match=f"scope of VM 'db-1' is being shown replay {first.id} already") as refusal:
        lab.start(restart_recording, "db-1")
    assert refusal.value.remedy_code is Remedy.STOP_REPLAY
    assert refusal.value.remedy_fields == {"replay": first.id}
    lab.start(restart_recording, "web-0")
    assert len(lab.world.control.replays.list_replays()) == 2


@pytest.mark.parametrize("writes", [0, 1])
def test_a_replay_that_cannot_be_stored_leaves_no_script(lab: Any, restart_recording: Any, writes: int) -> None:
    lab.world.store.fail_next(Unavailable("the disk is full"), after=writes)
    with suppress(Unavailable):
        lab.start(restart_recording, key=RequestKey(request_id="r1", digest="", at=NOON))
    has_script = lab.world.store.load(f"{REPLAY_SCRIPT_PREFIX}r1") is not None
    assert has_script is bool(lab.world.control.replays.list_replays())


def test_a_replay_that_is_over_for_a_day_is_forgotten_when_another_one_begins(lab: Any, restart_recording: Any) -> None:
    lab.start(restart_recording)
    lab.world.advance(10)
    event_id = lab.shows()["Events"][0]["EventId"]
    scope_id = lab.world.vm("web-0").scope_id
    lab.world.advance(KNOWN_EVENT_IDS_S)  # the replay goes on for 70 s of them
    lab.start(restart_recording, "web-1")
    assert lab.world.control.replays.was_shown(scope_id, event_id)
    lab.world.advance(100)
    lab.start(restart_recording, "db-0")
    assert not lab.world.control.replays.was_shown(scope_id, event_id)
    assert len(lab.world.control.replays.list_replays()) == 3


def test_a_replay_is_refused_while_the_scope_has_an_event(lab: Any, restart_recording: Any) -> None:
    (event,) = lab.world.ask(RequestedOperation.RESTART, "web-0")
    with pytest.raises(Refused, match=f"has event {event.id} .* under way: replay when it is over, or withdraw it"):
        lab.start(restart_recording)
    assert lab.world.control.replays.list_replays() == []


def test_a_real_event_of_the_scope_ends_the_replay_and_is_shown_at_once(lab: Any, restart_recording: Any) -> None:
    """Spec §4.2: real events come first; the incarnation grows, and the replayed events disappear."""
    request = lab.start(restart_recording)
    lab.world.advance(10)
    (event,) = lab.world.ask(RequestedOperation.RESTART, "web-0")
    assert [shown["EventId"] for shown in lab.shows()["Events"]] == [event.id]
    ended = lab.world.control.replays.find(request.id).replay
    assert (ended.outcome, ended.reason) == ("interrupted", f"the scope has an event of its own, {event.id}")
    lab.world.advance(3600)
    assert incarnations(lab) == sorted(set(incarnations(lab)))
    assert lab.shows()["Events"] == []


def test_an_operation_without_an_event_does_not_end_a_replay(lab: Any, restart_recording: Any) -> None:
    """Spec §6.4: power operations have no event."""
    lab.start(restart_recording)
    lab.world.ask(RequestedOperation.POWER_OFF, "web-0")
    lab.world.advance(10)
    assert len(lab.shows()["Events"]) == 1


def test_a_replay_ends_when_its_vm_is_removed(lab: Any, restart_recording: Any) -> None:
    request = lab.start(restart_recording)
    lab.world.ask(RequestedOperation.DELETE, "web-0")
    lab.world.advance(10)
    assert lab.world.control.replays.find(request.id).replay.reason == "VM web-0 was removed"


def test_a_replay_that_shows_its_next_step_at_that_moment_is_stopped_all_the_same(
    tmp_path: Path, restart_recording: Any
) -> None:
    world = World(vms=[a_vm("web-0")], hosts=[a_host("h1")], store=SqliteStore.open(tmp_path / "forewarn.db"))
    replays = world.control.replays
    request = world.do(replays.start(world.vm("web-0"), restart_recording, who="ann"))

    async def show_and_stop() -> None:
        await asyncio.gather(replays.reconcile(), replays.stop(request.id, who="ann"))

    world.do(show_and_stop())
    replay = replays.find(request.id).replay
    assert replay is not None
    assert (replay.done, replay.reason) == (1, "stopped by ann")
    world.close()


def test_stopping_a_replay_shows_the_document_of_the_scope_with_a_new_incarnation(
    lab: Any, restart_recording: Any
) -> None:
    """Spec §4.2."""
    request = lab.start(restart_recording)
    lab.world.advance(10)
    lab.world.do(lab.world.control.replays.stop(request.id[:30], who="ann"))
    assert lab.shows() == {"DocumentIncarnation": 3, "Events": []}
    with pytest.raises(Refused, match=r"is over \(stopped\): there is nothing to stop"):
        lab.world.do(lab.world.control.replays.stop(request.id, who="ann"))
    lab.start(restart_recording)
    with pytest.raises(NotFound, match="replay 'nope' does not exist") as refusal:
        lab.world.control.replays.find("nope")
    assert refusal.value.remedy_code is Remedy.LIST_REPLAYS


def test_the_history_lists_the_steps_of_a_replay(lab: Any, restart_recording: Any) -> None:
    request = lab.start(restart_recording)
    lab.world.advance(100)
    entries = [(entry.kind, entry.text) for entry in lab.world.store.history(request_id=request.id)]
    assert entries == [
        ("requested", "ann requested replay of a recording to web-0"),
        ("replayed", "web-0 is shown no events"),
        ("replayed", "web-0 is shown Reboot of web-0 scheduled"),
        ("replayed", "web-0 is shown Reboot of web-0 started"),
        ("replayed", "web-0 is shown no events"),
        ("completed", f"replay {request.id} finished"),
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"speed": 0}, "speed 0 is out of range: give a number from 0.01 to 10000"),
        ({"speed": float("nan")}, "speed nan is out of range"),
        ({"loops": 0}, "a recording can be replayed 1 to 1000 times, not 0 times"),
        ({"names": {"nobody": "x"}}, "no recorded event names VM 'nobody': those named are theirs"),
    ],
)
def test_a_replay_with_bad_options_is_rejected(
    lab: Any, restart_recording: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Rejected, match=sentence):
        lab.start(restart_recording, **options)
    assert lab.world.control.replays.list_replays() == []


def test_only_a_lab_replays_recordings(restart_recording: Any) -> None:
    world = World(vms=[a_vm("web-0")], hosts=[a_host("h1")])
    try:
        world.control.transactions.clock = SystemClock()
        with pytest.raises(Rejected, match="this service is not a lab, and its VMs only get real events") as refusal:
            world.do(world.control.replays.start(world.vm("web-0"), restart_recording, who="ann"))
        assert refusal.value.remedy_code is Remedy.USE_LAB
    finally:
        world.close()


def documents() -> st.SearchStrategy[Any]:
    events = st.lists(
        st.tuples(st.sampled_from("ABC"), st.sampled_from(["Scheduled", "Started"])), unique_by=lambda e: e[0]
    )
    return st.tuples(st.integers(0, 4), events) | st.sampled_from([410, 500, None])


@given(st.lists(documents(), min_size=1, max_size=8), st.integers(1, 3), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_incarnation_of_any_replay_never_decreases_and_identifies_the_content(
    make: Any, answers: list[Any], loops: int, data: st.DataObject
) -> None:
    """Spec §4.2, with restarts at any time."""
    recorded: list[RecordedAnswer] = []
    for n, answer in enumerate(answers):
        if not isinstance(answer, tuple):
            recorded.append(RecordedAnswer(at_s=float(n), status=answer))
            continue
        events = [make.event(name, EventStatus=status) for name, status in answer[1]]
        recorded.append(make.answer(float(n), *events, incarnation=answer[0]))
    world = World(vms=[a_vm("web-0")], hosts=[a_host("h1")])
    try:
        _replay(world, make.recording(*recorded, ended_s=float(len(recorded))), loops, data)
    finally:
        world.close()


def _replay(world: World, recording: UploadedRecording, loops: int, data: st.DataObject) -> None:
    content: dict[int, Any] = {}
    latest = 0

    def check(_: Any) -> None:
        nonlocal latest
        shown = world.control.replays.current_answer(world.scope("web-0"))
        document = shown.document if shown else None
        number = world.scope("web-0").incarnation
        notices = document.notices if document else ()
        assert number >= latest
        assert content.setdefault(number, notices) == notices
        latest = number

    world.store.subscribe(check)
    world.do(world.control.replays.start(world.vm("web-0"), recording, who="ann", loops=loops))
    world.settle()
    for _ in range(3):
        if data.draw(st.booleans()):
            world.restart()
            world.store.subscribe(check)
        world.advance(data.draw(st.floats(0.5, 20)))
    world.advance(100)
    replay = world.control.replays.list_replays()[0].replay
    assert replay is not None
    assert replay.outcome == "finished"
    assert json.loads(world.document("web-0"))["Events"] == []
