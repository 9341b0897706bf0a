"""The lifecycle of an event: every transition in every state (spec §6.1, §4.2, §5.2)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from msgspec.structs import replace

from forewarn.core import lifecycle
from forewarn.core.cause import Cause, Verb
from forewarn.core.event import Act, ActOutcome, Ending, Event, EventState
from forewarn.core.history import EntryKind
from forewarn.core.lifecycle import NONEXISTENT, TRANSITIONS, UNCHANGED, LifecycleState, Transition, is_allowed
from forewarn.core.scope import Scope
from forewarn.errors import Refused, Remedy

NOW = 1000.0
ID = "6D9F3C1A-0000-4000-8000-000000000001"
ACT = Act(id=f"{ID}:web-0", vm="sub/lab/web-0", name="web-0", verb=Verb.REBOOT, event_id=ID)
OK = ActOutcome(ok=True, at=NOW, note="reboot took 30 s")

# The diagram of the specification, written a second time: the table must agree with it cell by cell.
EXPECTED: dict[tuple[LifecycleState, Transition], EventState | None] = {
    (NONEXISTENT, Transition.ANNOUNCED): EventState.SCHEDULED,
    (NONEXISTENT, Transition.STARTED_WITHOUT_NOTICE): EventState.STARTED,
    (EventState.SCHEDULED, Transition.APPROVED): UNCHANGED,
    (EventState.SCHEDULED, Transition.RELEASED): EventState.STARTED,
    (EventState.SCHEDULED, Transition.WITHDRAWN): EventState.OVER,
    (EventState.STARTED, Transition.APPROVED): UNCHANGED,
    (EventState.STARTED, Transition.PERFORMED): UNCHANGED,
    (EventState.STARTED, Transition.FINISHED): EventState.OVER,
    (EventState.OVER, Transition.APPROVED): UNCHANGED,
    (EventState.OVER, Transition.PERFORMED): UNCHANGED,
}
STATES: tuple[LifecycleState, ...] = (NONEXISTENT, *EventState)
CELLS = [
    pytest.param(state, transition, id=f"{state}-{transition}") for state, transition in product(STATES, Transition)
]

# How each transition is made for an event that exists.
MAKE_TRANSITION: dict[Transition, Callable[[Scope, Event], Scope]] = {
    Transition.APPROVED: lambda scope, event: lifecycle.approve(scope, event, by="web-1", now=NOW),
    Transition.RELEASED: lambda scope, event: lifecycle.start(scope, event, (ACT,), NOW),
    Transition.PERFORMED: lambda scope, event: lifecycle.record_outcome(scope, event, ACT.id, OK),
    Transition.FINISHED: lambda scope, event: lifecycle.finish(scope, event, NOW),
    Transition.WITHDRAWN: lambda scope, event: lifecycle.withdraw(scope, event, by="ann", reason="why", now=NOW),
}
MAKE_INITIAL_TRANSITION: dict[Transition, Callable[[Scope, Event], Scope]] = {
    Transition.ANNOUNCED: lifecycle.announce,
    Transition.STARTED_WITHOUT_NOTICE: lambda scope, event: lifecycle.start_without_notice(scope, event, (ACT,), NOW),
}
EXISTING = [pytest.param(s, h, id=f"{s}-{h}") for s, h in product(EventState, MAKE_TRANSITION)]


def event(
    status: EventState = EventState.SCHEDULED, *, listed: bool = True, vms: tuple[str, ...] = ("web-0",)
) -> Event:
    acts = () if status is EventState.SCHEDULED else (ACT,)
    ending = Ending.FINISHED if status is EventState.OVER else None
    return Event(
        id=ID, scope_id="set:sub/lab/web", request_id="r1", cause=Cause.USER_RESTART, requested_by="ann", vms=vms,
        published_at=NOW, not_before=NOW + 900, status=status, listed=listed, acts=acts, ending=ending,
    )  # fmt: skip


def scope_with(*events: Event) -> Scope:
    return Scope(id="set:sub/lab/web", incarnation=7, events=events)


def status_in(scope: Scope) -> EventState:
    found = scope.event(ID)
    assert found is not None
    return found.status


@pytest.mark.parametrize(("state", "transition"), CELLS)
def test_every_cell_of_the_table_follows_the_specification(state: LifecycleState, transition: Transition) -> None:
    """Spec §6.1."""
    assert is_allowed(state, transition) is ((state, transition) in EXPECTED)
    assert TRANSITIONS.get((state, transition), "refused") == EXPECTED.get((state, transition), "refused")


def test_every_transition_goes_forward() -> None:
    """Spec §6.1: no sequence of transitions returns to a state, and none leaves `over`."""
    order = [NONEXISTENT, *EventState]
    assert all(order.index(to) > order.index(state) for (state, _), to in TRANSITIONS.items() if to is not UNCHANGED)


@pytest.mark.parametrize("transition", MAKE_INITIAL_TRANSITION)
def test_an_event_begins_as_scheduled_or_as_started(transition: Transition) -> None:
    begun = MAKE_INITIAL_TRANSITION[transition](scope_with(), event())
    assert status_in(begun) is EXPECTED[NONEXISTENT, transition]
    assert begun.incarnation == 8


@pytest.mark.parametrize(("status", "transition"), EXISTING)
def test_an_event_follows_its_cell_of_the_table(status: EventState, transition: Transition) -> None:
    """Spec §4.2: the incarnation steps by one exactly when the status changes."""
    before = event(status)
    scope = scope_with(before)
    if (status, transition) not in EXPECTED:
        with pytest.raises(Refused, match=ID):
            MAKE_TRANSITION[transition](scope, before)
        return
    to = EXPECTED[status, transition]
    after = MAKE_TRANSITION[transition](scope, before)
    assert status_in(after) is (to or status)
    assert after.incarnation == scope.incarnation + (to is not UNCHANGED)


@pytest.mark.parametrize(("status", "transition"), EXISTING)
def test_an_unlisted_event_never_changes_the_incarnation(status: EventState, transition: Transition) -> None:
    """Spec §4.2: no document shows it, so no document changes."""
    if (status, transition) in EXPECTED:
        before = event(status, listed=False)
        assert MAKE_TRANSITION[transition](scope_with(before), before).incarnation == 7


def test_an_operation_performed_at_once_does_not_change_the_incarnation() -> None:
    """Spec §8.2."""
    assert lifecycle.start_without_notice(scope_with(), event(listed=False), (ACT,), NOW).incarnation == 7


def test_two_new_events_add_two_to_the_incarnation() -> None:
    """Spec §4.2."""
    other = replace(event(), id=ID[:-1] + "2")
    scope = lifecycle.announce(lifecycle.announce(scope_with(), event()), other)
    assert scope.incarnation == 9
    assert [e.seq for e in scope.events] == [1, 2]


def test_the_whole_life_of_an_event_adds_three_to_the_incarnation() -> None:
    """Spec §4.2: added, started, removed; approval and outcome do not count."""
    scope = lifecycle.announce(scope_with(), event())
    seen = [scope.incarnation]
    for transition in (Transition.APPROVED, Transition.RELEASED, Transition.PERFORMED, Transition.FINISHED):
        scope = MAKE_TRANSITION[transition](scope, scope.events[0])
        seen.append(scope.incarnation)
    assert seen == [8, 8, 9, 9, 10]


def test_only_the_first_approval_counts() -> None:
    """Spec §5.2: approved before is 200 with no effect."""
    once = lifecycle.approve(scope_with(event()), event(), by="web-1", now=NOW)
    again = lifecycle.approve(once, once.events[0], by="web-2", now=NOW + 1)
    assert again is once
    assert (once.events[0].approved_by, once.events[0].approved_at) == ("web-1", NOW)


@pytest.mark.parametrize("status", [EventState.STARTED, EventState.OVER])
def test_approving_an_event_that_has_started_or_is_over_changes_nothing(status: EventState) -> None:
    """Spec §5.2: a retry after a lost answer is harmless."""
    scope = scope_with(event(status))
    assert lifecycle.approve(scope, event(status), by="web-1", now=NOW) is scope


def test_the_outcome_of_an_act_is_recorded_once() -> None:
    scope = lifecycle.record_outcome(scope_with(event(EventState.STARTED)), event(EventState.STARTED), ACT.id, OK)
    late = lifecycle.record_outcome(scope, scope.events[0], ACT.id, ActOutcome(ok=False, at=NOW + 5, note="lost"))
    assert late is scope
    assert scope.events[0].acts[0].outcome == OK


def test_the_outcome_of_an_unknown_act_changes_nothing() -> None:
    scope = scope_with(event(EventState.STARTED))
    assert lifecycle.record_outcome(scope, event(EventState.STARTED), f"{ID}:web-9", OK) is scope


def test_an_event_with_a_failed_act_ends_as_failed_with_the_reason() -> None:
    """Spec §6.1: history keeps every event with its outcome."""
    started = event(EventState.STARTED)
    bad = ActOutcome(ok=False, at=NOW, note="no power")
    scope = lifecycle.record_outcome(scope_with(started), started, ACT.id, bad)
    over = lifecycle.finish(scope, scope.events[0], NOW + 1)
    assert (over.events[0].ending, over.events[0].reason) == (Ending.FAILED, "web-0: no power")
    assert [entry.text for entry in over.new_entries] == [
        "reboot of web-0 failed: no power",
        "Reboot of web-0 failed: web-0: no power",
    ]


def test_a_withdrawn_event_keeps_who_when_and_why() -> None:
    """Spec §6.1."""
    over = lifecycle.withdraw(scope_with(event()), event(), by="bob", reason="not today", now=NOW + 3)
    kept = over.events[0]
    assert (kept.ending, kept.reason, kept.over_at) == (Ending.WITHDRAWN, "not today", NOW + 3)
    assert (over.new_entries[0].kind, over.new_entries[0].actor) == (EntryKind.WITHDRAWN, "bob")


def test_an_event_that_is_not_needed_is_withdrawn_with_that_ending() -> None:
    """Spec §6.4."""
    reason = "web-0 is no longer on host-1"
    over = lifecycle.withdraw(
        scope_with(event()), event(), by="platform", reason=reason, now=NOW + 3, ending=Ending.NOT_NEEDED
    )
    kept = over.events[0]
    assert (kept.status, kept.ending, kept.is_withdrawn) == (EventState.OVER, Ending.NOT_NEEDED, True)
    (entry,) = over.new_entries
    assert (entry.kind, entry.text) == (EntryKind.NOT_NEEDED, f"Reboot of web-0 not needed: {reason}")


def test_withdrawing_a_started_event_is_refused_with_a_way_to_follow_it() -> None:
    """Spec §6.2: withdrawal is possible until the event has started."""
    with pytest.raises(Refused) as refusal:
        lifecycle.withdraw(scope_with(), event(EventState.STARTED), by="ann", reason="", now=NOW)
    assert str(refusal.value) == f"event {ID} (Reboot of web-0) has started and can no longer be withdrawn"
    assert (refusal.value.remedy_code, refusal.value.remedy_fields) == (Remedy.EXPLAIN_EVENT, {"event": ID})


def test_withdrawing_an_event_that_is_over_is_refused_with_its_ending() -> None:
    with pytest.raises(Refused) as refusal:
        lifecycle.withdraw(scope_with(), event(EventState.OVER), by="ann", reason="", now=NOW)
    assert str(refusal.value) == f"event {ID} (Reboot of web-0) is over (finished): there is nothing to withdraw"


@pytest.mark.parametrize(
    ("status", "transition", "message"),
    [
        (EventState.STARTED, Transition.RELEASED, f"event {ID} is started: it cannot be released"),
        (EventState.OVER, Transition.RELEASED, f"event {ID} is over: it cannot be released"),
        (EventState.SCHEDULED, Transition.PERFORMED, f"event {ID} is scheduled: it cannot be performed"),
        (EventState.SCHEDULED, Transition.FINISHED, f"event {ID} is scheduled: it cannot be finished"),
        (EventState.OVER, Transition.FINISHED, f"event {ID} is over: it cannot be finished"),
    ],
)
def test_a_refused_transition_names_the_event_and_its_state(
    status: EventState, transition: Transition, message: str
) -> None:
    with pytest.raises(Refused) as refusal:
        MAKE_TRANSITION[transition](scope_with(event(status)), event(status))
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("vms", "title"),
    [
        (("a",), "Reboot of a scheduled"),
        (("a", "b", "c", "d"), "Reboot of a, b, c, d scheduled"),
        (("a", "b", "c", "d", "e"), "Reboot of a, b, c and 2 more scheduled"),
    ],
)
def test_the_history_names_a_few_vms_and_counts_the_rest(vms: tuple[str, ...], title: str) -> None:
    assert lifecycle.announce(scope_with(), event(vms=vms)).new_entries[0].text == title


def test_a_history_entry_names_its_vm_if_it_is_about_one() -> None:
    alone = lifecycle.announce(scope_with(), event()).new_entries[0]
    both = lifecycle.announce(scope_with(), event(vms=("a", "b"))).new_entries[0]
    assert (alone.vm, both.vm) == ("web-0", "")
    assert (alone.scope_id, alone.event_id, alone.request_id) == ("set:sub/lab/web", ID, "r1")
