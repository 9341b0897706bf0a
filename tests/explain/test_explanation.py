"""Explanations as people read them: "why did my VM reboot", "what is this restart waiting for"."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.core.cause import CAUSE_RULES, Cause
from forewarn.core.event import Act, ActOutcome, Ending, Event, EventState
from forewarn.core.explain.explanation import (
    Explanation,
    ScopeFacts,
    VmPoll,
    describe_polling,
    event_explanation,
    vm_explanation,
)
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.history import EntryKind, EventDelivery, HistoryEntry
from forewarn.core.release import StartWait, WaitReason
from forewarn.core.scope import Scope

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
        "requested_by": "ann",
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


def facts_at(now: float, **facts: Any) -> ScopeFacts:
    scope = Scope(id=WEB0.scope_id, vms=(WEB0, WEB1), enabled_at=NOON - 3600)
    names = {vm.key: vm.name for vm in (WEB0, WEB1)}
    return ScopeFacts(**{"now": now, "scope": scope, "title": "availability set web", "names": names, **facts})


def delivery_to(vm: Vm, at: float, *, event: str = "E1", status: EventState = EventState.SCHEDULED) -> EventDelivery:
    return EventDelivery(
        event_id=event, scope_id=vm.scope_id, vm=vm.key, status=status, version="2020-07-01", incarnation=2, at=at
    )


def printed(explanation: Explanation) -> str:
    """The explanation as it would be printed."""
    lines = [explanation.title]
    for line in explanation.lines:
        lines.append(f"{datetime.fromtimestamp(line.at, UTC):%H:%M:%S} {line.text}")
        lines += [f"         {part}" for part in line.detail.split("; ") if part]
    return "\n".join([*lines, *(f"* {sentence}" for sentence in explanation.now)])


def test_an_approved_restart_is_explained_from_beginning_to_end() -> None:
    event = an_event(
        status=EventState.OVER,
        approved_at=NOON + MINUTE,
        approved_by="web-0",
        started_at=NOON + MINUTE,
        over_at=NOON + 90,
        ending=Ending.FINISHED,
    )
    event = replace(event, acts=(an_act(event, at=NOON + 90, note="reboot took 30 s"),))
    facts_then = facts_at(
        NOON + 3600,
        deliveries=[
            delivery_to(WEB0, NOON + 1),
            delivery_to(WEB1, NOON + 2),
            delivery_to(WEB0, NOON + 61, status=EventState.STARTED),
        ],
        polls=[VmPoll(vm="web-0", silent_s=1.0, version="2020-07-01")],
    )
    assert printed(event_explanation(event, facts_then)) == (
        """\
Reboot of web-0: user restart
12:00:00 ann requested it: user restart; scheduled with 15 min of notice
12:00:01 delivered to web-0 as Scheduled
         api-version 2020-07-01, incarnation 2
12:00:02 delivered to web-1 as Scheduled
         api-version 2020-07-01, incarnation 2
12:01:00 web-0 approved it, 14 min before its notice ended
12:01:00 it started: approved by web-0, 1 min into the 15 min of notice
12:01:01 delivered to web-0 as Started
         api-version 2020-07-01, incarnation 2
12:01:30 reboot of web-0 was performed, 30 s after the start
         reboot took 30 s
12:01:30 it ended: finished
* It ended 58 min 30 s ago: finished.
* Scheduled events are enabled for availability set web.
* web-0 polls, one other VM does not (the last poll was 1 s ago, api-version 2020-07-01)."""
    )


def test_an_event_approved_in_the_moment_of_its_publication_had_notice() -> None:
    """In a lab with a paused clock, both have the same time."""
    event = an_event(status=EventState.STARTED, approved_at=NOON, approved_by="web-0", started_at=NOON)
    lines = printed(event_explanation(event, facts_at(NOON))).splitlines()
    assert lines[1:4] == [
        "12:00:00 ann requested it: user restart; scheduled with 15 min of notice",
        "12:00:00 web-0 approved it, 15 min before its notice ended",
        "12:00:00 it started: approved by web-0, less than a second into the 15 min of notice",
    ]
    assert "no notice" not in printed(vm_explanation(WEB0, [event], facts_at(NOON)))


def test_an_event_of_a_rollout_names_the_rollout() -> None:
    event = an_event(cause=Cause.HOST_UPDATE, host="h1")
    facts_then = facts_at(NOON, rollouts={"r1": "rollout r1, update over 6 hosts"})
    assert event_explanation(event, facts_then).lines[0].text == (
        "ann requested it: host update, as part of rollout r1, update over 6 hosts; scheduled with 15 min of notice"
    )
    detail = vm_explanation(WEB0, [event], facts_then).lines[0].detail
    assert detail.endswith("part of rollout r1, update over 6 hosts; event E1")


def test_an_event_names_the_event_that_it_replaced() -> None:
    """Spec §8.4."""
    explanation = event_explanation(an_event(cause=Cause.USER_REDEPLOY, replaces=("E0",)), facts_at(NOON))
    assert explanation.lines[0].text.startswith("ann requested it: user redeploy, in place of event E0; scheduled")


def test_the_act_of_an_evicted_vm_is_called_eviction() -> None:
    event = an_event(cause=Cause.EVICTION, status=EventState.STARTED, started_at=NOON + 30)
    explanation = event_explanation(replace(event, acts=(an_act(event, ok=None),)), facts_at(NOON + 31))
    assert "It started 1 s ago; the eviction of web-0 is in progress." in explanation.now


def test_the_explanation_of_a_vm_lists_the_newest_event_first() -> None:
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
        requested_by="bob",
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
    facts_then = facts_at(later + 3600, deliveries=[delivery_to(WEB1, NOON + 2)])
    assert printed(vm_explanation(WEB0, [restart, failed], facts_then)) == (
        """\
web-0, of availability set web
14:00:00 Redeploy, requested by bob (host failed): failed, web-0: no power
         no notice
         delivered to no VM
         redeploy of web-0 from h1 to h2 failed, 1 min after the start
         event E2
12:00:00 Reboot, requested by ann (user restart): finished
         15 min of notice promised, 1 min given
         never delivered to web-0, but delivered to web-1 after 2 s (api-version 2020-07-01)
         approved by web-1
         reboot of web-0 was performed, 30 s after the start
         event E1
* web-0 is running on h1.
* Scheduled events are enabled for availability set web.
* No client there has polled yet."""
    )


def test_the_events_of_a_vm_are_sorted_by_the_time_that_is_shown() -> None:
    """One event starts while another, which was published before it, still waits."""
    first = an_event(status=EventState.STARTED, started_at=NOON + 15 * MINUTE)
    second = an_event(
        id="E2",
        status=EventState.STARTED,
        published_at=NOON + MINUTE,
        not_before=NOON + 16 * MINUTE,
        started_at=NOON + 2 * MINUTE,
    )
    lines = vm_explanation(WEB0, [first, second], facts_at(NOON + 20 * MINUTE)).lines
    assert [(line.at, line.detail[-2:]) for line in lines] == [(NOON + MINUTE, "E2"), (NOON, "E1")]


def test_a_pending_event_says_what_it_waits_for_and_that_no_client_polls() -> None:
    """Spec §6.2 and §8.5: clients are advised to poll once a second."""
    wait = StartWait(reason=WaitReason.NOTICE, text="an approval, or the end of its notice", until=NOON + 15 * MINUTE)
    facts_then = facts_at(
        NOON + 5 * MINUTE,
        waits={"E1": wait},
        polls=[VmPoll(vm="web-1", silent_s=2 * 3600 + 5 * MINUTE, version="2019-08-01")],
    )
    assert event_explanation(an_event(), facts_then).now == (
        "It is scheduled and waits for an approval, or the end of its notice, at most 10 min.",
        "It was not delivered to web-0 yet.",
        "Scheduled events are enabled for availability set web.",
        "No client there has polled for 2 h 5 min; the last was web-1 (api-version 2019-08-01).",
    )


def test_an_approved_event_behind_a_gate_waits_for_its_neighbours() -> None:
    """Spec §6.2, shared host."""
    event = an_event(cause=Cause.HOST_UPDATE, approved_at=NOON + 1, approved_by="web-0", host="h1")
    wait = StartWait(reason=WaitReason.GATE, text="the other VMs on host h1, which are not ready yet")
    facts = facts_at(NOON + 2, waits={"E1": wait}, deliveries=[delivery_to(WEB0, NOON + 1)])
    assert event_explanation(event, facts).now[0] == (
        "It is scheduled, was approved by web-0, and waits for the other VMs on host h1, which are not ready yet."
    )
    assert (
        event_explanation(event, facts_at(NOON + 2)).now[0] == "It is scheduled, was approved by web-0, and starts now."
    )


def test_a_started_event_says_which_acts_are_in_progress() -> None:
    """Spec §6.5: it stays Started until the outcome of every VM is known, plus a settling time."""
    event = an_event(status=EventState.STARTED, started_at=NOON + 15 * MINUTE)
    working = replace(event, acts=(an_act(event, ok=None),))
    facts_then = facts_at(NOON + 15 * MINUTE + 20)
    assert event_explanation(working, facts_then).now[0] == "It started 20 s ago; the reboot of web-0 is in progress."
    retry = HistoryEntry(
        at=facts_then.now - 3, kind=EntryKind.RETRIED, text="reboot is tried again", event_id="E1", vm="web-0"
    )
    again = facts_at(facts_then.now, entries=[retry])
    assert event_explanation(working, again).now[1] == "3 s ago: reboot is tried again."
    done = replace(event, acts=(an_act(event, at=NOON + 15 * MINUTE + 10),))
    assert event_explanation(done, again).now == event_explanation(done, facts_then).now
    assert "every act was performed" in event_explanation(done, facts_then).now[0]
    failed = replace(event, acts=(an_act(event, ok=False),))
    assert ", and the reboot of web-0 failed; it stays listed" in event_explanation(failed, facts_then).now[0]
    assert "reboot is in progress" in vm_explanation(WEB0, [working], facts_then).lines[0].detail
    texts = [line.text for line in event_explanation(working, facts_then).lines]
    assert texts[-1] == "it started: its notice of 15 min ended"


def test_a_started_event_says_which_acts_the_hypervisor_does_not_answer() -> None:
    event = an_event(status=EventState.STARTED, started_at=NOON + 15 * MINUTE, vms=("web-0", "web-1"))
    working = replace(event, acts=(an_act(event, ok=None), an_act(event, WEB1, ok=None)))
    facts_then = facts_at(
        NOON + 20 * MINUTE, unanswered_s={"E1:web-0": 180.4, "E2:web-1": 900.0}, blocking_hosts={"E1:web-1": "h1"}
    )
    assert event_explanation(working, facts_then).now[1:3] == (
        "The hypervisor has not answered the reboot of web-0 for 3 min of real time.",
        "The reboot of web-1 waits until earlier calls to host h1 are answered.",
    )


def test_an_event_that_started_late_says_how_late() -> None:
    event = an_event(status=EventState.STARTED, started_at=NOON + 16 * MINUTE)
    texts = [line.text for line in event_explanation(event, facts_at(NOON + 17 * MINUTE)).lines]
    assert texts[-1] == "it started: its notice of 15 min ended 1 min before"


def test_a_notice_is_shown_as_it_was_requested() -> None:
    """Spec §4.2: NotBefore has whole seconds, so it may be up to a second later."""
    event = an_event(published_at=NOON + 0.2, not_before=NOON + 901)
    assert event_explanation(event, facts_at(NOON + 1)).lines[0].text.endswith("scheduled with 15 min of notice")


def test_an_operation_without_an_event_says_why() -> None:
    """Spec §8.2: the requester learns why."""
    event = an_event(
        listed=False,
        note="no VM of the scope has polled within 24 h, so scheduled events are disabled there",
        status=EventState.OVER,
        started_at=NOON,
        over_at=NOON + 30,
        ending=Ending.FINISHED,
    )
    facts_then = facts_at(NOON + 60, scope=Scope(id=WEB0.scope_id, vms=(WEB0, WEB1)))
    explanation = event_explanation(event, facts_then)
    assert explanation.lines[0].text == "ann requested it: user restart; performed at once, without an event"
    assert "within 24 h" in explanation.lines[0].detail
    assert explanation.now[1].startswith("Scheduled events are disabled for availability set web")
    assert (
        vm_explanation(WEB0, [event], facts_then).lines[0].detail.startswith("no notice: no VM of the scope has polled")
    )


def test_a_withdrawn_event_says_why() -> None:
    event = an_event(status=EventState.OVER, over_at=NOON + 60, ending=Ending.WITHDRAWN, reason="taken back by ann")
    explanation = event_explanation(event, facts_at(NOON + 120))
    assert explanation.lines[-1].text == "it ended: withdrawn, taken back by ann"
    assert explanation.now[0] == "It ended 1 min ago: withdrawn, taken back by ann."


def service(text: str, at: float) -> HistoryEntry:
    return HistoryEntry(at=at, kind=EntryKind.SERVICE, text=text)


def test_only_a_crash_during_the_event_may_have_lost_deliveries() -> None:
    """Deliveries are stored in batches once a second."""
    entries = [
        service("service started, version 1", NOON - 100),
        service("service stopped", NOON + 10),
        service("service started, version 1", NOON + 70),
        service("service started, version 1", NOON + 200),
        service("service started, version 1", NOON + 1000),
    ]
    event = an_event(status=EventState.OVER, over_at=NOON + 300, ending=Ending.WITHDRAWN)
    lines = [
        line for line in event_explanation(event, facts_at(NOON + 2000, entries=entries)).lines if "again" in line.text
    ]
    assert [(line.at - NOON, line.text, bool(line.detail)) for line in lines] == [
        (70, "the service started again, 1 min after it stopped", False),
        (200, "the service started again after a crash", True),
    ]


def test_other_entries_about_the_service_are_no_restarts() -> None:
    entries = [
        service("control passed from started-1 to stopped-2, term 2, after 3.4 s", NOON + 5),
        service("service stopped", NOON + 10),
        service("PostgreSQL has lost commits", NOON + 20),
        service("service started, version 1", NOON + 70),
    ]
    lines = event_explanation(an_event(), facts_at(NOON + 300, entries=entries)).lines
    (restart,) = [line.text for line in lines if "again" in line.text]
    assert restart == "the service started again, 1 min after it stopped"


def test_the_gate_and_skipped_vms_come_from_the_history() -> None:
    event = an_event(cause=Cause.PLATFORM_REBOOT, host="h1", status=EventState.STARTED, started_at=NOON + 900)
    entries = [
        HistoryEntry(at=NOON + 900, kind=EntryKind.RELEASED, text="everything is ready", request_id="r1", host="h1"),
        HistoryEntry(at=NOON + 900, kind=EntryKind.RELEASED, text="another host", request_id="r1", host="h2"),
        HistoryEntry(at=NOON + 900, kind=EntryKind.SKIPPED, text="web-1 is skipped", event_id="E1"),
        HistoryEntry(at=NOON + 900, kind=EntryKind.STARTED, text="known from the event itself", event_id="E1"),
    ]
    texts = [line.text for line in event_explanation(event, facts_at(NOON + 901, entries=entries)).lines]
    assert texts[1:] == ["everything is ready", "web-1 is skipped", "it started: its notice of 15 min ended"]


def test_deliveries_to_many_vms_are_listed_for_the_first_and_counted_for_the_rest() -> None:
    """Spec §7.2: every VM of a scope gets every event; a placement group has up to 100."""
    vms = [a_vm(f"web-{n}") for n in range(20)]
    facts_then = facts_at(
        NOON + 60,
        deliveries=[delivery_to(vm, NOON + number) for number, vm in enumerate(vms)],
        names={vm.key: vm.name for vm in vms},
        polls=[VmPoll(vm=vm.name, silent_s=1.0, version="2020-07-01") for vm in vms],
        scope=Scope(id=WEB0.scope_id, vms=tuple(vms), enabled_at=NOON),
    )
    explanation = event_explanation(an_event(vms=tuple(vm.name for vm in vms)), facts_then)
    assert explanation.title == "Reboot of web-0, web-1, web-2 and 17 more: user restart"
    assert len(explanation.lines) == 1 + 8 + 1
    assert explanation.lines[-1].text == "by now delivered to 12 more VMs as Scheduled"
    assert "web-0, web-1, web-10 and 17 more poll (the last poll was 1 s ago" in explanation.now[-1]


def test_a_vm_that_left_the_scope_is_named_without_its_subscription_and_group() -> None:
    then = facts_at(NOON + 60, deliveries=[delivery_to(WEB1, NOON + 1)], names={WEB0.key: WEB0.name})
    assert event_explanation(an_event(), then).lines[-1].text == "delivered to web-1 as Scheduled"
    (line,) = vm_explanation(WEB0, [an_event()], then).lines
    assert "never delivered to web-0, but delivered to web-1 after 1 s" in line.detail
    assert "It was not delivered to" not in " ".join(event_explanation(an_event(vms=("web-1",)), then).now)


POWER_STATES = [
    ({}, "web-0 is running on h1."),
    ({"power": PowerState.STOPPED}, "web-0 is stopped on h1."),
    ({"power": PowerState.DEALLOCATED, "host": ""}, "web-0 is deallocated and on no host."),
    ({"removed_at": NOON - 60, "host": ""}, "web-0 was removed 1 min ago."),
]


@pytest.mark.parametrize(("facts", "sentence"), POWER_STATES)
def test_the_explanation_of_a_vm_says_its_power_state(facts: Any, sentence: str) -> None:
    explanation = vm_explanation(a_vm("web-0", **facts), [], facts_at(NOON))
    assert explanation.now[:2] == (sentence, "No maintenance of it is recorded.")
    assert explanation.lines == ()


def test_the_explanation_of_a_removed_vm_leaves_out_polling() -> None:
    facts_then = facts_at(NOON, polls=[VmPoll(vm="web-0", silent_s=4.0, version="2020-07-01")])
    explanation = vm_explanation(a_vm("web-0", removed_at=NOON - 3, host=""), [], facts_then)
    assert explanation.now == ("web-0 was removed 3 s ago.", "No maintenance of it is recorded.")


DAY = 24 * 3600.0
DISABLED = Scope(id=WEB0.scope_id, vms=(WEB0, WEB1))
POLLS = [
    pytest.param(
        3.0, None, "within 24 h. User", "web-0 polls, one other VM does not (the last poll was 3 s ago", id="no lab"
    ),
    pytest.param(3.0, 5.0, "within 24 h. User", "(the last poll was 3 s ago", id="a lab that was not advanced"),
    pytest.param(
        3.0,
        2 * DAY,
        "within 24 h of lab time. User",
        "(the last poll was 3 s of real time or 2 d of lab time ago",
        id="a lab that was advanced",
    ),
    pytest.param(
        90.0,
        2 * DAY,
        "within 24 h of lab time. User",
        "No client there has polled for 1 min 30 s of real time or 2 d of lab time; the last was web-0",
        id="an advanced lab with a silent VM",
    ),
]


@pytest.mark.parametrize(("silent_s", "lab_s", "disabled", "polled"), POLLS)
def test_texts_about_polls_say_which_time_they_mean_where_lab_time_and_real_time_differ(
    silent_s: float, lab_s: float | None, disabled: str, polled: str
) -> None:
    """Spec §12: a scope becomes idle in lab time, and polls arrive in real time."""
    poll = VmPoll(vm="web-0", silent_s=silent_s, version="2020-07-01", lab_s=lab_s)
    first, second = describe_polling(facts_at(NOON, scope=DISABLED, polls=[poll]))
    assert disabled in first
    assert polled in second


DURATIONS = [
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


@pytest.mark.parametrize(("seconds", "words"), DURATIONS)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert duration_text(seconds) == words


def test_a_started_event_says_how_its_acts_are_going_and_which_host_does_not_answer() -> None:
    event = an_event(status=EventState.STARTED, started_at=NOON + 15 * MINUTE, vms=("web-0", "web-1"))
    working = replace(event, acts=(an_act(event, ok=None), an_act(event, WEB1, ok=None)))
    facts_then = facts_at(
        NOON + 20 * MINUTE,
        act_notes={"E1:web-0": "43 %, 120 MiB left", "E2:web-1": "of another event"},
        awaited_hosts={"E1:web-1": "h1"},
    )
    assert event_explanation(working, facts_then).now[1:3] == (
        "The hypervisor reports for web-0: 43 %, 120 MiB left.",
        "The reboot of web-1 waits for host h1, which does not answer.",
    )


def test_the_reports_about_many_acts_are_counted() -> None:
    event = an_event(status=EventState.STARTED, started_at=NOON, vms=tuple(f"web-{n}" for n in range(10)))
    acts = tuple(an_act(event, replace(WEB0, name=name), ok=None) for name in event.vms)
    sentences = event_explanation(
        replace(event, acts=acts), facts_at(NOON + 1, act_notes={act.id: "half done" for act in acts})
    ).now
    assert [text for text in sentences if "half done" in text] == [
        f"The hypervisor reports for web-{n}: half done." for n in range(8)
    ]
    assert "It reports on 2 more VMs." in sentences


def test_a_started_event_names_the_hypervisor_that_performs_it() -> None:
    event = an_event(status=EventState.STARTED, started_at=NOON + 15 * MINUTE)
    working = replace(event, acts=(an_act(event, ok=None),))
    facts_then = facts_at(NOON + 20 * MINUTE, hypervisor="no real VMs, only a ledger of acts")
    assert event_explanation(working, facts_then).now[1] == "Acts are performed on no real VMs, only a ledger of acts."
    done = replace(event, acts=(an_act(event, at=NOON + 16 * MINUTE),))
    assert "performed on" not in str(event_explanation(done, facts_then).now)


def test_explanations_of_vms_and_of_what_is_over_name_the_hypervisor_once() -> None:
    event = an_event(status=EventState.STARTED, started_at=NOON + 15 * MINUTE)
    facts_then = facts_at(NOON + 20 * MINUTE, hypervisor="no real VMs, only a ledger of acts")
    sentence = "Acts are performed on no real VMs, only a ledger of acts."
    over = replace(
        event, status=EventState.OVER, over_at=NOON + 17 * MINUTE, acts=(an_act(event, at=NOON + 16 * MINUTE),)
    )
    assert event_explanation(over, facts_then).now[1] == sentence
    assert vm_explanation(WEB0, [over], facts_then).now[-1] == sentence
    working = replace(event, acts=(an_act(event, ok=None),))
    assert str(vm_explanation(WEB0, [working, over], facts_then).now).count(sentence) == 1
