"""Stories as people read them: "why did my VM reboot", "what is this restart waiting for"."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.core.cause import CAUSE_RULES, Cause
from forewarn.core.event import Act, ActOutcome, Ending, Event, EventState
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.history import EntryKind, EventDelivery, HistoryEntry
from forewarn.core.release import StartWait, WaitReason
from forewarn.core.scope import Scope
from forewarn.explain.explanation import Explanation, ScopeFacts, VmPoll, event_explanation, vm_explanation
from forewarn.explain.phrases import duration_text

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp()
MINUTE = 60.0


def a_vm(name: str, **facts: Any) -> Vm:
    given: dict[str, Any] = {"availability_set": "web", "host": "h1"}
    return Vm(name=name, vm_id="", subscription_id="sub", resource_group="lab", location="here", **{**given, **facts})


WEB0, WEB1 = a_vm("web-0"), a_vm("web-1", update_domain=1)


def an_event(**facts: Any) -> Event:
    given: dict[str, Any] = {
        "id": "E1",
        "scope_id": WEB0.scope_id,
        "request_id": "r1",
        "cause": Cause.USER_RESTART,
        "who": "ann",
        "vms": ("web-0",),
        "published_at": NOON,
        "not_before": NOON + 15 * MINUTE,
    }
    return Event(**{**given, **facts})


def an_act(event: Event, vm: Vm = WEB0, *, ok: bool | None = True, at: float = 0, **facts: Any) -> Act:
    outcome = None if ok is None else ActOutcome(ok=ok, at=at, note=facts.pop("note", ""))
    verb = CAUSE_RULES[event.cause].verb
    return Act(
        id=f"{event.id}:{vm.name}", vm=vm.key, name=vm.name, verb=verb, event_id=event.id, outcome=outcome, **facts
    )


def a_record(now: float, **facts: Any) -> ScopeFacts:
    scope = Scope(id=WEB0.scope_id, vms=(WEB0, WEB1), enabled_at=NOON - 3600)
    names = {vm.key: vm.name for vm in (WEB0, WEB1)}
    return ScopeFacts(**{"now": now, "scope": scope, "title": "availability set web", "names": names, **facts})


def seen(vm: Vm, at: float, *, event: str = "E1", status: EventState = EventState.SCHEDULED) -> EventDelivery:
    return EventDelivery(
        event_id=event, scope_id=vm.scope_id, vm=vm.key, status=status, version="2020-07-01", incarnation=2, at=at
    )


def told(story: Explanation) -> str:
    """The story as it would be printed."""
    lines = [story.title]
    for line in story.lines:
        lines.append(f"{datetime.fromtimestamp(line.at, UTC):%H:%M:%S} {line.text}")
        lines += [f"         {part}" for part in line.detail.split("; ") if part]
    return "\n".join([*lines, *(f"* {sentence}" for sentence in story.now)])


def test_a_restart_that_a_vm_approved_is_told_from_beginning_to_end() -> None:
    event = an_event(
        status=EventState.OVER,
        approved_at=NOON + MINUTE,
        approved_by="web-0",
        started_at=NOON + MINUTE,
        over_at=NOON + 90,
        ending=Ending.FINISHED,
    )
    event = replace(event, acts=(an_act(event, at=NOON + 90, note="reboot took 30 s"),))
    record = a_record(
        NOON + 3600,
        deliveries=[seen(WEB0, NOON + 1), seen(WEB1, NOON + 2), seen(WEB0, NOON + 61, status=EventState.STARTED)],
        polls=[VmPoll(vm="web-0", at=NOON + 3599, version="2020-07-01")],
    )
    assert told(event_explanation(event, record)) == (
        """\
Reboot of web-0: user restart
12:00:00 ann asked for it: user restart; scheduled with 15 min of notice
12:00:01 web-0 was given it as Scheduled
         api-version 2020-07-01, incarnation 2
12:00:02 web-1 was given it as Scheduled
         api-version 2020-07-01, incarnation 2
12:01:00 web-0 approved it, 14 min before its notice ended
12:01:00 it started: web-0 had approved, 1 min into the 15 min of notice
12:01:01 web-0 was given it as Started
         api-version 2020-07-01, incarnation 2
12:01:30 reboot of web-0 was performed, 30 s after the start
         reboot took 30 s
12:01:30 it was over: finished
* It was over 58 min 30 s ago: finished.
* Scheduled events are enabled for availability set web.
* web-0 asks for events, one other does not (the last 1 s ago, api-version 2020-07-01)."""
    )


def test_an_approval_in_the_moment_of_publication_is_no_lack_of_notice() -> None:
    """In a lab whose clock stands still both have one time."""
    event = an_event(status=EventState.STARTED, approved_at=NOON, approved_by="web-0", started_at=NOON)
    lines = told(event_explanation(event, a_record(NOON))).splitlines()
    assert lines[1:4] == [
        "12:00:00 ann asked for it: user restart; scheduled with 15 min of notice",
        "12:00:00 web-0 approved it, 15 min before its notice ended",
        "12:00:00 it started: web-0 had approved, less than a second into the 15 min of notice",
    ]
    assert "no notice" not in told(vm_explanation(WEB0, [event], a_record(NOON)))


def test_an_event_of_a_rollout_names_it() -> None:
    event = an_event(cause=Cause.HOST_UPDATE, host="h1")
    record = a_record(NOON, rollouts={"r1": "rollout r1, update over 6 hosts"})
    assert event_explanation(event, record).lines[0].text == (
        "ann asked for it: host update, as part of rollout r1, update over 6 hosts; scheduled with 15 min of notice"
    )
    detail = vm_explanation(WEB0, [event], record).lines[0].detail
    assert detail.endswith("part of rollout r1, update over 6 hosts; event E1")


def test_what_took_the_place_of_another_says_of_which() -> None:
    """Spec §8.4."""
    story = event_explanation(an_event(cause=Cause.USER_REDEPLOY, replaces=("E0",)), a_record(NOON))
    assert story.lines[0].text.startswith("ann asked for it: user redeploy, in place of event E0; scheduled")


def test_an_eviction_is_called_so() -> None:
    event = an_event(cause=Cause.EVICTION, status=EventState.STARTED, started_at=NOON + 30)
    story = event_explanation(replace(event, acts=(an_act(event, ok=None),)), a_record(NOON + 31))
    assert "It started 1 s ago; the eviction of web-0 is under way." in story.now


def test_a_vm_is_told_why_it_rebooted_the_newest_event_first() -> None:
    restart = an_event(
        status=EventState.OVER,
        approved_at=NOON + MINUTE,
        approved_by="web-1",
        started_at=NOON + MINUTE,
        over_at=NOON + 90,
        ending=Ending.FINISHED,
    )
    restart = replace(restart, acts=(an_act(restart, at=NOON + 90),))
    later = NOON + 7200
    failed = an_event(
        id="E2",
        cause=Cause.HOST_FAILED,
        who="bob",
        published_at=later,
        not_before=later,
        started_at=later,
        status=EventState.OVER,
        over_at=later + 60,
        ending=Ending.FAILED,
        reason="web-0: no power",
    )
    act = an_act(failed, ok=False, at=later + 60, note="no power", from_host="h1", to_host="h2")
    failed = replace(failed, acts=(act,))
    record = a_record(later + 3600, deliveries=[seen(WEB1, NOON + 2)])
    assert told(vm_explanation(WEB0, [restart, failed], record)) == (
        """\
web-0, of availability set web
14:00:00 Redeploy, asked for by bob (host failed): failed, web-0: no power
         no notice
         no VM was given it
         redeploy of web-0 from h1 to h2 failed, 1 min after the start
         event E2
12:01:00 Reboot, asked for by ann (user restart): finished
         15 min of notice promised, 1 min given
         web-0 was never given it, but web-1 was given it after 2 s (api-version 2020-07-01)
         approved by web-1
         reboot of web-0 was performed, 30 s after the start
         event E1
* web-0 is running on h1.
* Scheduled events are enabled for availability set web.
* Nobody there has ever asked for events."""
    )


def test_a_pending_event_says_what_it_waits_for_and_that_nobody_watches() -> None:
    """Spec §6.2 and §8.5: clients are advised to poll once a second."""
    wait = StartWait(reason=WaitReason.NOTICE, text="an approval, or the end of its notice", until=NOON + 15 * MINUTE)
    record = a_record(
        NOON + 5 * MINUTE,
        waits={"E1": wait},
        polls=[VmPoll(vm="web-1", at=NOON - 2 * 3600, version="2019-08-01")],
    )
    assert event_explanation(an_event(), record).now == (
        "It is scheduled and waits for an approval, or the end of its notice: 10 min at the longest.",
        "web-0 has not been given it yet.",
        "Scheduled events are enabled for availability set web.",
        "Nobody there has asked for events for 2 h 5 min; the last was web-1 (api-version 2019-08-01).",
    )


def test_an_approved_event_behind_a_gate_waits_for_its_neighbours() -> None:
    """Spec §6.2, shared host."""
    event = an_event(cause=Cause.HOST_UPDATE, approved_at=NOON + 1, approved_by="web-0", host="h1")
    wait = StartWait(reason=WaitReason.GATE, text="the other VMs on host h1, which are not ready yet")
    story = event_explanation(event, a_record(NOON + 2, waits={"E1": wait}, deliveries=[seen(WEB0, NOON + 1)]))
    assert story.now[0] == (
        "It is scheduled, was approved by web-0, and waits for the other VMs on host h1, which are not ready yet."
    )
    assert (
        event_explanation(event, a_record(NOON + 2)).now[0] == "It is scheduled, was approved by web-0, and starts now."
    )


def test_a_started_event_says_what_is_under_way() -> None:
    """Spec §6.5: it stays Started until the outcome of every VM is known, plus a settling time."""
    event = an_event(status=EventState.STARTED, started_at=NOON + 15 * MINUTE)
    working = replace(event, acts=(an_act(event, ok=None),))
    record = a_record(NOON + 15 * MINUTE + 20)
    assert event_explanation(working, record).now[0] == "It started 20 s ago; the reboot of web-0 is under way."
    setback = HistoryEntry(
        at=record.now - 3, what=EntryKind.RETRIED, text="reboot is tried again", event_id="E1", vm="web-0"
    )
    again = a_record(record.now, entries=[setback])
    assert event_explanation(working, again).now[1] == "3 s ago: reboot is tried again."
    done = replace(event, acts=(an_act(event, at=NOON + 15 * MINUTE + 10),))
    assert event_explanation(done, again).now == event_explanation(done, record).now
    assert "everything is performed" in event_explanation(done, record).now[0]
    assert "reboot is under way" in vm_explanation(WEB0, [working], record).lines[0].detail
    texts = [line.text for line in event_explanation(working, record).lines]
    assert texts[-1] == "it started: its notice of 15 min had ended"


def test_an_event_that_started_late_says_how_late() -> None:
    event = an_event(status=EventState.STARTED, started_at=NOON + 16 * MINUTE)
    texts = [line.text for line in event_explanation(event, a_record(NOON + 17 * MINUTE)).lines]
    assert texts[-1] == "it started: its notice of 15 min had ended 1 min before"


def test_a_notice_is_told_as_it_was_asked_for() -> None:
    """Spec §4.2: NotBefore has whole seconds, so it may be up to a second later."""
    event = an_event(published_at=NOON + 0.2, not_before=NOON + 901)
    assert event_explanation(event, a_record(NOON + 1)).lines[0].text.endswith("scheduled with 15 min of notice")


def test_what_had_no_event_says_why() -> None:
    """Spec §8.2: whoever asked is told why."""
    event = an_event(
        listed=False,
        note="no VM of the scope has polled within 24 h, so scheduled events are disabled there",
        status=EventState.OVER,
        started_at=NOON,
        over_at=NOON + 30,
        ending=Ending.FINISHED,
    )
    record = a_record(NOON + 60, scope=Scope(id=WEB0.scope_id, vms=(WEB0, WEB1)))
    story = event_explanation(event, record)
    assert story.lines[0].text == "ann asked for it: user restart; carried out at once, with no event"
    assert "within 24 h" in story.lines[0].detail
    assert story.now[1].startswith("Scheduled events are disabled for availability set web")
    assert vm_explanation(WEB0, [event], record).lines[0].detail.startswith("no notice: no VM of the scope has asked")


def test_a_withdrawn_event_says_why() -> None:
    event = an_event(status=EventState.OVER, over_at=NOON + 60, ending=Ending.WITHDRAWN, reason="taken back by ann")
    story = event_explanation(event, a_record(NOON + 120))
    assert story.lines[-1].text == "it was over: withdrawn, taken back by ann"
    assert story.now[0] == "It was over 1 min ago: withdrawn, taken back by ann."


def service(text: str, at: float) -> HistoryEntry:
    return HistoryEntry(at=at, what=EntryKind.SERVICE, text=text)


def test_only_a_crash_may_have_lost_sightings_and_only_during_the_event() -> None:
    """Sightings are written in batches once a second."""
    entries = [
        service("service started, version 1", NOON - 100),
        service("service stopped", NOON + 10),
        service("service started, version 1", NOON + 70),
        service("service started, version 1", NOON + 200),
        service("service started, version 1", NOON + 1000),
    ]
    event = an_event(status=EventState.OVER, over_at=NOON + 300, ending=Ending.WITHDRAWN)
    lines = [
        line for line in event_explanation(event, a_record(NOON + 2000, entries=entries)).lines if "back" in line.text
    ]
    assert [(line.at - NOON, line.text, bool(line.detail)) for line in lines] == [
        (70, "the service was back after 1 min away", False),
        (200, "the service was back after a crash", True),
    ]


def test_the_gate_and_skipped_vms_are_told_from_the_history() -> None:
    event = an_event(cause=Cause.PLATFORM_REBOOT, host="h1", status=EventState.STARTED, started_at=NOON + 900)
    entries = [
        HistoryEntry(at=NOON + 900, what=EntryKind.RELEASED, text="everything is ready", request_id="r1", host="h1"),
        HistoryEntry(at=NOON + 900, what=EntryKind.RELEASED, text="another host", request_id="r1", host="h2"),
        HistoryEntry(at=NOON + 900, what=EntryKind.SKIPPED, text="web-1 is skipped", event_id="E1"),
        HistoryEntry(at=NOON + 900, what=EntryKind.STARTED, text="said by the event itself", event_id="E1"),
    ]
    texts = [line.text for line in event_explanation(event, a_record(NOON + 901, entries=entries)).lines]
    assert texts[1:] == ["everything is ready", "web-1 is skipped", "it started: its notice of 15 min had ended"]


def test_of_many_vms_the_first_are_named_and_the_rest_counted() -> None:
    """Spec §7.2: every member of a scope is given every event; a placement group has up to 100."""
    vms = [a_vm(f"web-{n}") for n in range(20)]
    record = a_record(
        NOON + 60,
        deliveries=[seen(vm, NOON + number) for number, vm in enumerate(vms)],
        names={vm.key: vm.name for vm in vms},
        polls=[VmPoll(vm=vm.name, at=NOON + 59, version="2020-07-01") for vm in vms],
        scope=Scope(id=WEB0.scope_id, vms=tuple(vms), enabled_at=NOON),
    )
    story = event_explanation(an_event(vms=tuple(vm.name for vm in vms)), record)
    assert story.title == "Reboot of web-0, web-1, web-2 and 17 more: user restart"
    assert len(story.lines) == 1 + 8 + 1
    assert story.lines[-1].text == "by now 12 more VMs were given it as Scheduled"
    assert "web-0, web-1, web-10 and 17 more ask for events (the last 1 s ago" in story.now[-1]


CONDITIONS = [
    ({}, "web-0 is running on h1."),
    ({"power": PowerState.STOPPED}, "web-0 is stopped on h1."),
    ({"power": PowerState.DEALLOCATED, "host": ""}, "web-0 is deallocated and on no host."),
    ({"removed_at": NOON - 60, "host": ""}, "web-0 was removed 1 min ago."),
]


@pytest.mark.parametrize(("facts", "sentence"), CONDITIONS)
def test_a_vm_says_how_it_is(facts: Any, sentence: str) -> None:
    story = vm_explanation(a_vm("web-0", **facts), [], a_record(NOON))
    assert story.now[:2] == (sentence, "No maintenance of it is on record.")
    assert story.lines == ()


def test_nobody_asks_for_a_vm_that_was_removed() -> None:
    record = a_record(NOON, polls=[VmPoll(vm="web-0", at=NOON - 4, version="2020-07-01")])
    story = vm_explanation(a_vm("web-0", removed_at=NOON - 3, host=""), [], record)
    assert story.now == ("web-0 was removed 3 s ago.", "No maintenance of it is on record.")


SPANS = [
    (0, "less than a second"),
    (0.4, "less than a second"),
    (-5, "less than a second"),
    (59.6, "1 min"),
    (90, "1 min 30 s"),
    (3600, "1 h"),
    (3661, "1 h 1 min"),
    (3601, "1 h"),
    (7 * 86400 + 3 * 3600 + 5, "7 d 3 h"),
]


@pytest.mark.parametrize(("seconds", "words"), SPANS)
def test_a_span_is_said_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert duration_text(seconds) == words
