"""The life of an event (spec §6), as one table. Nothing else in the house changes an event's status.

Two rules. First: every edge goes one way, and over is over. Second: the scope's incarnation grows by one whenever
what a document lists has changed (an event added, its status changed, removed), and at no other time; so an
approval, or the outcome of one VM, changes facts of the event but not the document.

A cell says where a happening leads from a state; STAYS records a fact and moves nowhere; what is not in the table
is refused. `docs/lifecycle.md` holds the diagram drawn from this table.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import replace

from forewarn.core.cause import noun
from forewarn.core.event import Act, Ending, Event, Outcome, Status
from forewarn.core.history import Entry, What
from forewarn.core.scope import Scope
from forewarn.errors import Refused


class Happening(StrEnum):
    ANNOUNCED = "announced"  # notice is given
    STRUCK = "struck"  # no notice: hardware failed, approved by policy, or carried out at once
    APPROVED = "approved"
    RELEASED = "released"  # ready, and nothing it must wait for
    PERFORMED = "performed"  # one act's outcome is known
    FINISHED = "finished"  # every outcome is known, and the settling time is over
    WITHDRAWN = "withdrawn"


class Begin(StrEnum):
    """Where an event is before it exists."""

    NOTHING = "nothing"


State = Status | Begin
NOTHING = Begin.NOTHING
SCHEDULED, STARTED, OVER = Status.SCHEDULED, Status.STARTED, Status.OVER
STAYS = None

TABLE: dict[tuple[State, Happening], Status | None] = {
    (NOTHING, Happening.ANNOUNCED): SCHEDULED,
    (NOTHING, Happening.STRUCK): STARTED,
    (SCHEDULED, Happening.APPROVED): STAYS,
    (SCHEDULED, Happening.RELEASED): STARTED,
    (SCHEDULED, Happening.WITHDRAWN): OVER,
    (STARTED, Happening.APPROVED): STAYS,
    (STARTED, Happening.PERFORMED): STAYS,
    (STARTED, Happening.FINISHED): OVER,
    (OVER, Happening.APPROVED): STAYS,  # spec §5.2: a retry after a lost answer is harmless
    (OVER, Happening.PERFORMED): STAYS,
}


def is_allowed(state: State, happening: Happening) -> bool:
    return (state, happening) in TABLE


def announce(scope: Scope, event: Event) -> Scope:
    text = f"{_title(event)} scheduled{_because(event)}"
    return _move(scope, NOTHING, event, Happening.ANNOUNCED, _entry(event, What.PUBLISHED, event.published_at, text))


def strike(scope: Scope, event: Event, acts: tuple[Act, ...], now: float) -> Scope:
    """The event begins as Started. Unlisted ones are carried out with no document ever showing them."""
    begun = replace(event, started_at=now, acts=acts)
    if event.listed:
        entry = _entry(event, What.STARTED, now, f"{_title(event)} started without notice{_because(event)}")
    else:
        entry = _entry(event, What.AT_ONCE, now, f"{noun(event.row.verb)} of {_names(event)} at once{_because(event)}")
    return _move(scope, NOTHING, begun, Happening.STRUCK, entry)


def awaits_approval(event: Event) -> bool:
    return event.status is SCHEDULED and event.approved_at is None


def approve(scope: Scope, event: Event, *, by: str, now: float) -> Scope:
    """The first approval counts; later ones, and those of started or past events, change nothing."""
    _must_allow(event, Happening.APPROVED)
    if not awaits_approval(event):
        return scope
    entry = _entry(event, What.APPROVED, now, f"{by} approved {_title(event)}", who=by)
    return _move(scope, event.status, replace(event, approved_at=now, approved_by=by), Happening.APPROVED, entry)


def start(scope: Scope, event: Event, acts: tuple[Act, ...], now: float) -> Scope:
    why = f"approved by {event.approved_by}" if event.approved_at is not None else "its time had come"
    entry = _entry(event, What.STARTED, now, f"{_title(event)} started: {why}")
    return _move(scope, event.status, replace(event, started_at=now, acts=acts), Happening.RELEASED, entry)


def perform(scope: Scope, event: Event, act_id: str, outcome: Outcome) -> Scope:
    """An act's outcome becomes known; a late or repeated word about it changes nothing."""
    _must_allow(event, Happening.PERFORMED)
    act = next((a for a in event.owed if a.id == act_id), None)
    if act is None:
        return scope
    acts = tuple(replace(a, outcome=outcome) if a.id == act_id else a for a in event.acts)
    result = "performed" if outcome.ok else "failed"
    text = f"{noun(act.verb)} of {act.name} {result}" + (f": {outcome.note}" if outcome.note else "")
    what = What.PERFORMED if outcome.ok else What.FAILED
    entry = replace(_entry(event, what, outcome.at, text), vm=act.name)
    return _move(scope, event.status, replace(event, acts=acts), Happening.PERFORMED, entry)


def finish(scope: Scope, event: Event, now: float) -> Scope:
    failed = event.failures
    ending = Ending.FAILED if failed else Ending.FINISHED
    reason = "; ".join(f"{a.name}: {a.outcome.note}" for a in failed if a.outcome) if failed else ""
    text = f"{_title(event)} {'failed' if failed else 'finished'}" + (f": {reason}" if reason else "")
    over = replace(event, over_at=now, ending=ending, reason=reason)
    return _move(scope, event.status, over, Happening.FINISHED, _entry(event, What.FINISHED, now, text))


def withdraw(scope: Scope, event: Event, *, by: str, reason: str, now: float) -> Scope:
    if event.status is STARTED:
        raise Refused(
            f"event {event.id} ({_title(event)}) has started and can no longer be withdrawn: "
            f"follow it with `forewarn explain {event.id}`"
        )
    if event.status is OVER:
        raise Refused(f"event {event.id} ({_title(event)}) is over ({event.ending}): there is nothing to withdraw")
    over = replace(event, over_at=now, ending=Ending.WITHDRAWN, reason=reason)
    text = f"{_title(event)} withdrawn: {reason}"
    return _move(scope, event.status, over, Happening.WITHDRAWN, _entry(event, What.WITHDRAWN, now, text, who=by))


def _move(scope: Scope, state: State, event: Event, happening: Happening, entry: Entry) -> Scope:
    if not is_allowed(state, happening):
        raise Refused(f"event {event.id} is {state}: it cannot be {happening}")
    to = TABLE[state, happening]
    if to is STAYS:
        return scope.with_event(event).saying(entry)
    moved = scope.with_event(replace(event, status=to)).saying(entry)
    return moved.stepped() if event.listed else moved


def _must_allow(event: Event, happening: Happening) -> None:
    if not is_allowed(event.status, happening):
        raise Refused(f"event {event.id} is {event.status}: it cannot be {happening}")


def _title(event: Event) -> str:
    kind = event.row.kind if event.listed and event.row.kind else noun(event.row.verb)
    return f"{kind} of {_names(event)}"


def _names(event: Event) -> str:
    if len(event.vms) <= 4:
        return ", ".join(event.vms)
    return f"{', '.join(event.vms[:3])} and {len(event.vms) - 3} more"


def _because(event: Event) -> str:
    return f": {event.note}" if event.note else ""


def _entry(event: Event, what: What, at: float, text: str, *, who: str = "") -> Entry:
    return Entry(
        at=at,
        what=what,
        text=text,
        who=who or event.who,
        event_id=event.id,
        request_id=event.request_id,
        vm=event.vms[0] if len(event.vms) == 1 else "",
        host=event.host,
    )
