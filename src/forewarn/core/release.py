"""When an event starts (spec §6.2): it must be ready, and there must be nothing else that it has to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from forewarn.core.event import Event, Status
from forewarn.core.policy import Around
from forewarn.core.scope import Scope
from forewarn.protocol.document import Kind

_NAMED = 4  # VMs that are told one by one; the others are counted


class Reason(StrEnum):
    NOTICE = "notice"
    GRACE = "grace"
    GATE = "gate"
    UPDATE_DOMAIN = "update domain"
    TERMINATES = "terminates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What keeps an event from starting; `until` is when that ends by itself, None when something else must happen."""

    reason: Reason
    text: str
    until: float | None = None


def waits_for(scope: Scope, event: Event, around: Around) -> Wait | None:
    """The first thing this Scheduled event waits for; None: it starts now."""
    return (
        _notice(event, around)
        or _grace(event, around)
        or _terminates(scope, event, around)
        or _update_domain(scope, event, around)
        or _gate(event, around)
    )


def is_free(scope: Scope, event: Event, around: Around) -> bool:
    """Whether only its gate keeps this event: what a gate must know of each event behind it."""
    return (
        _notice(event, around) is None
        and _grace(event, around) is None
        and _update_domain(scope, event, around) is None
    )


def gate_wait(event: Event, unready: Sequence[Event]) -> Wait:
    """What an event behind a closed gate waits for, with the names of those who are not ready: for operators only."""
    names = list(dict.fromkeys(name for other in unready for name in other.vms))
    if not names:
        return _closed(event)
    told = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    text = f"{told} on host {event.host}, which {'is' if len(names) == 1 else 'are'} not ready yet"
    return Wait(reason=Reason.GATE, text=text)


def _notice(event: Event, around: Around) -> Wait | None:
    if event.is_ready(around.now):
        return None
    return Wait(reason=Reason.NOTICE, text="an approval, or the end of its notice", until=event.not_before)


def _grace(event: Event, around: Around) -> Wait | None:
    """Its time came while the service was away: those who could not poll get a moment to look."""
    back = around.resumed_at
    if back is None or event.approved_at is not None or event.not_before > back:
        return None
    if _is_released(event, around):
        return None  # the others on its host may have started already
    until = back + around.policy.grace_s
    if around.now >= until:
        return None
    return Wait(reason=Reason.GRACE, text="VMs that could not poll while the service was away", until=until)


def _update_domain(scope: Scope, event: Event, around: Around) -> Wait | None:
    """Planned platform maintenance takes one update domain of a scope at a time, whichever rollout it is of."""
    if not event.row.planned:
        return None
    for other in scope.live():
        if not other.row.planned or other.update_domain == event.update_domain:
            continue
        if other.status is Status.STARTED or _goes_first(other, event, around):
            text = f"update domain {other.update_domain}, where event {other.id} has started"
            return Wait(reason=Reason.UPDATE_DOMAIN, text=text)
    return None


def _goes_first(other: Event, event: Event, around: Around) -> bool:
    """A released gate counts as a start: nothing may slip in between the two and part the VMs of a host."""
    return _is_released(other, around) and not _is_released(event, around)


def _terminates(scope: Scope, event: Event, around: Around) -> Wait | None:
    """Terminates of a placement group start together, each at its own NotBefore at the latest."""
    if not scope.is_placement_group or event.row.kind is not Kind.TERMINATE or around.now >= event.not_before:
        return None
    for other in scope.live(Status.SCHEDULED):
        if other.row.kind is Kind.TERMINATE and (_notice(other, around) or _grace(other, around)):
            text = f"event {other.id}, a Terminate of the same placement group that is not approved yet"
            return Wait(reason=Reason.TERMINATES, text=text, until=event.not_before)
    return None


def _is_released(event: Event, around: Around) -> bool:
    return bool(event.gate_id) and around.is_released(event.gate_id)


def _gate(event: Event, around: Around) -> Wait | None:
    if not event.gate_id or around.is_released(event.gate_id):
        return None
    return _closed(event)


def _closed(event: Event) -> Wait:
    return Wait(reason=Reason.GATE, text=f"the other VMs on host {event.host}, which are not ready yet")
