"""The lifecycle of an event (spec §6) as one table. Only this module changes an event's status.

Two rules. Every transition goes forward, and the state of a finished event never changes. The scope's incarnation
grows by one when the listed events of its document change, and at no other time: an approval or the outcome of one
act changes the event but not the document. A pair that is not in the table is refused. `docs/reference/lifecycle.md` is
generated from the table. The functions return the scope with the event changed and a history entry added.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import replace

from forewarn.base.wording import first_names
from forewarn.core.cause import verb_noun
from forewarn.core.event import Act, ActOutcome, Ending, Event, EventState
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.scope import Scope
from forewarn.errors import Refused, Remedy


class Transition(StrEnum):
    """What can happen to an event; TRANSITIONS says in which states."""

    ANNOUNCED = "announced"  # published with notice
    STARTED_WITHOUT_NOTICE = (
        "started without notice"  # a host failed, a policy or a fault starts it, or it is performed at once
    )
    APPROVED = "approved"
    RELEASED = "released"  # a scheduled event starts: it is ready and waits for nothing
    PERFORMED = "performed"  # the outcome of one act is known
    FINISHED = "finished"  # every outcome is known, and the settling time is over
    WITHDRAWN = "withdrawn"  # it ends without having started


class InitialState(StrEnum):
    """The state NONEXISTENT of an event that is not published yet: a row of TRANSITIONS, never stored."""

    NONEXISTENT = "nonexistent"


LifecycleState = EventState | InitialState  # a row of the table
NONEXISTENT = InitialState.NONEXISTENT
SCHEDULED, STARTED, OVER = EventState.SCHEDULED, EventState.STARTED, EventState.OVER
UNCHANGED = None  # in the table: the transition is allowed and the state stays

# The state after each allowed transition, by the state before it.
TRANSITIONS: dict[tuple[LifecycleState, Transition], EventState | None] = {
    (NONEXISTENT, Transition.ANNOUNCED): SCHEDULED,
    (NONEXISTENT, Transition.STARTED_WITHOUT_NOTICE): STARTED,
    (SCHEDULED, Transition.APPROVED): UNCHANGED,
    (SCHEDULED, Transition.RELEASED): STARTED,
    (SCHEDULED, Transition.WITHDRAWN): OVER,
    (STARTED, Transition.APPROVED): UNCHANGED,
    (STARTED, Transition.PERFORMED): UNCHANGED,
    (STARTED, Transition.FINISHED): OVER,
    (OVER, Transition.APPROVED): UNCHANGED,  # spec §5.2: a retry after a lost answer is harmless
    (OVER, Transition.PERFORMED): UNCHANGED,
}


def is_allowed(state: LifecycleState, transition: Transition) -> bool:
    """Return whether TRANSITIONS allows the transition in this state, even if the state stays the same."""
    return (state, transition) in TRANSITIONS


def announce(scope: Scope, event: Event) -> Scope:
    """Publish this new, listed event with notice. Its id must be new to the scope, which is not checked."""
    text = f"{_event_title(event)} scheduled{_note_suffix(event)}"
    return _apply_transition(
        scope,
        NONEXISTENT,
        event,
        Transition.ANNOUNCED,
        _history_entry(event, EntryKind.PUBLISHED, event.published_at, text),
    )


def start_without_notice(scope: Scope, event: Event, acts: tuple[Act, ...], now: float) -> Scope:
    """Publish and start this new event at once with its acts. Its id must be new to the scope."""
    started = replace(event, started_at=now, acts=acts)
    if event.listed:
        entry = _history_entry(
            event, EntryKind.STARTED, now, f"{_event_title(event)} started without notice{_note_suffix(event)}"
        )
    else:
        entry = _history_entry(
            event,
            EntryKind.AT_ONCE,
            now,
            f"{verb_noun(event.rules.verb)} of {first_names(event.vms)} at once{_note_suffix(event)}",
        )
    return _apply_transition(scope, NONEXISTENT, started, Transition.STARTED_WITHOUT_NOTICE, entry)


def awaits_approval(event: Event) -> bool:
    """Return whether the event is scheduled and not approved, so that an approval would start it earlier."""
    return event.status is SCHEDULED and event.approved_at is None and event.rules.has_impact


def approve(scope: Scope, event: Event, *, by: str, now: float) -> Scope:
    """Approve the event; it does not start here. Only the first approval of a scheduled event counts."""
    _require_allowed(event, Transition.APPROVED)
    if not awaits_approval(event):
        return scope
    entry = _history_entry(event, EntryKind.APPROVED, now, f"{by} approved {_event_title(event)}", who=by)
    return _apply_transition(
        scope, event.status, replace(event, approved_at=now, approved_by=by), Transition.APPROVED, entry
    )


def start(scope: Scope, event: Event, acts: tuple[Act, ...], now: float) -> Scope:
    """Start a scheduled event with these acts. What it waited for is checked in `release`."""
    why = f"approved by {event.approved_by}" if event.approved_at is not None else "its notice ended"
    entry = _history_entry(event, EntryKind.STARTED, now, f"{_event_title(event)} started: {why}")
    return _apply_transition(scope, event.status, replace(event, started_at=now, acts=acts), Transition.RELEASED, entry)


def record_outcome(scope: Scope, event: Event, act_id: str, outcome: ActOutcome) -> Scope:
    """Record the outcome of one act; the incarnation stays, and so does the VM (`record_act_outcome` changes it)."""
    _require_allowed(event, Transition.PERFORMED)
    act = next((a for a in event.unfinished_acts if a.id == act_id), None)
    if act is None:
        return scope
    acts = tuple(replace(a, outcome=outcome) if a.id == act_id else a for a in event.acts)
    result = "performed" if outcome.ok else "failed"
    text = f"{verb_noun(act.verb)} of {act.name} {result}" + (f": {outcome.note}" if outcome.note else "")
    what = EntryKind.PERFORMED if outcome.ok else EntryKind.FAILED
    entry = replace(_history_entry(event, what, outcome.at, text), vm=act.name)
    vm = scope.vm(act.name)
    if not outcome.ok and vm is not None and vm.seen is not None:
        scope = scope.with_vm(replace(vm, seen=replace(vm.seen, instance="", is_uncertain=True)))
    return _apply_transition(scope, event.status, replace(event, acts=acts), Transition.PERFORMED, entry)


def finish(scope: Scope, event: Event, now: float) -> Scope:
    """End a started event. The caller knows every outcome: an act without one counts as no failure."""
    failed = event.failed_acts
    ending = Ending.FAILED if failed else Ending.FINISHED
    reason = "; ".join(f"{a.name}: {a.outcome.note}" for a in failed if a.outcome) if failed else ""
    text = f"{_event_title(event)} {'failed' if failed else 'finished'}" + (f": {reason}" if reason else "")
    over = replace(event, over_at=now, ending=ending, reason=reason)
    return _apply_transition(
        scope, event.status, over, Transition.FINISHED, _history_entry(event, EntryKind.FINISHED, now, text)
    )


def withdraw(
    scope: Scope, event: Event, *, by: str, reason: str, now: float, ending: Ending = Ending.WITHDRAWN
) -> Scope:
    """End a scheduled event, even an approved one, without a start."""
    if event.status is STARTED:
        raise Refused(
            f"event {event.id} ({_event_title(event)}) has started and can no longer be withdrawn",
            Remedy.EXPLAIN_EVENT,
            event=event.id,
        )
    if event.status is OVER:
        raise Refused(
            f"event {event.id} ({_event_title(event)}) is over ({event.ending}): there is nothing to withdraw"
        )
    over = replace(event, over_at=now, ending=ending, reason=reason)
    kind = EntryKind.NOT_NEEDED if ending is Ending.NOT_NEEDED else EntryKind.WITHDRAWN
    entry = _history_entry(event, kind, now, f"{_event_title(event)} {ending}: {reason}", who=by)
    return _apply_transition(scope, event.status, over, Transition.WITHDRAWN, entry)


def _apply_transition(
    scope: Scope, state: LifecycleState, event: Event, transition: Transition, entry: HistoryEntry
) -> Scope:
    if not is_allowed(state, transition):
        raise Refused(f"event {event.id} is {state}: it cannot be {transition}")
    to = TRANSITIONS[state, transition]
    if to is UNCHANGED:
        return scope.with_event(event).with_entries(entry)
    moved = scope.with_event(replace(event, status=to)).with_entries(entry)
    return moved.with_incarnation_increased() if event.listed else moved


def _require_allowed(event: Event, transition: Transition) -> None:
    if not is_allowed(event.status, transition):
        raise Refused(f"event {event.id} is {event.status}: it cannot be {transition}")


def _event_title(event: Event) -> str:
    kind = event.rules.kind if event.listed and event.rules.kind else verb_noun(event.rules.verb)
    return f"{kind} of {first_names(event.vms)}"


def _note_suffix(event: Event) -> str:
    return f": {event.note}" if event.note else ""


def _history_entry(event: Event, what: EntryKind, at: float, text: str, *, who: str = "") -> HistoryEntry:
    return HistoryEntry(
        at=at,
        kind=what,
        text=text,
        actor=who or event.requested_by,
        event_id=event.id,
        request_id=event.request_id,
        vm=event.vms[0] if len(event.vms) == 1 else "",
        host=event.host,
    )
