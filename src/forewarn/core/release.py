"""Decides when a scheduled event may start, and says what it waits for until then (spec §6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from forewarn.core.decision import DecisionContext
from forewarn.core.event import Event, EventState
from forewarn.core.scope import Scope
from forewarn.protocol.document import Kind

_MAX_NAMED_VMS = 4  # VMs that are told one by one; the others are counted


class WaitReason(StrEnum):
    NOTICE = "notice"
    GRACE = "grace"
    GATE = "gate"
    UPDATE_DOMAIN = "update domain"
    TERMINATES = "terminates"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWait:
    """What keeps an event from starting; `until` is when that ends by itself, None when something else must happen."""

    reason: WaitReason
    text: str
    until: float | None = None


def start_wait(scope: Scope, event: Event, around: DecisionContext) -> StartWait | None:
    """The first thing this Scheduled event waits for; None: it starts now."""
    return (
        _notice_wait(event, around)
        or _grace_wait(event, around)
        or _terminate_wait(scope, event, around)
        or _update_domain_wait(scope, event, around)
        or _gate_wait(event, around)
    )


def waits_only_for_gate(scope: Scope, event: Event, around: DecisionContext) -> bool:
    """Whether only its gate keeps this event: what a gate must know of each event behind it."""
    return (
        _notice_wait(event, around) is None
        and _grace_wait(event, around) is None
        and _update_domain_wait(scope, event, around) is None
    )


def describe_gate_wait(event: Event, unready: Sequence[Event]) -> StartWait:
    """What an event behind a closed gate waits for, with the names of those who are not ready: for operators only."""
    names = list(dict.fromkeys(name for other in unready for name in other.vms))
    if not names:
        return _closed_gate_wait(event)
    told = ", ".join(names[:_MAX_NAMED_VMS]) + (
        f" and {len(names) - _MAX_NAMED_VMS} more" if len(names) > _MAX_NAMED_VMS else ""
    )
    text = f"{told} on host {event.host}, which {'is' if len(names) == 1 else 'are'} not ready yet"
    return StartWait(reason=WaitReason.GATE, text=text)


def _notice_wait(event: Event, around: DecisionContext) -> StartWait | None:
    if event.is_ready(around.now):
        return None
    return StartWait(reason=WaitReason.NOTICE, text="an approval, or the end of its notice", until=event.not_before)


def _grace_wait(event: Event, around: DecisionContext) -> StartWait | None:
    """Its time came while the service was away: those who could not poll get a moment to look."""
    back = around.resumed_at
    if back is None or event.approved_at is not None or event.not_before > back:
        return None
    if _is_gate_released(event, around):
        return None  # the others on its host may have started already
    until = back + around.policy.grace_s
    if around.now >= until:
        return None
    return StartWait(reason=WaitReason.GRACE, text="VMs that could not poll while the service was away", until=until)


def _update_domain_wait(scope: Scope, event: Event, around: DecisionContext) -> StartWait | None:
    """Planned platform maintenance takes one update domain of a scope at a time, whichever rollout it is of."""
    if not event.rules.planned:
        return None
    for other in scope.live_events():
        if not other.rules.planned or other.update_domain == event.update_domain:
            continue
        if other.status is EventState.STARTED or _has_precedence(other, event, around):
            text = f"update domain {other.update_domain}, where event {other.id} has started"
            return StartWait(reason=WaitReason.UPDATE_DOMAIN, text=text)
    return None


def _has_precedence(other: Event, event: Event, around: DecisionContext) -> bool:
    """A released gate counts as a start: nothing may slip in between the two and part the VMs of a host."""
    return _is_gate_released(other, around) and not _is_gate_released(event, around)


def _terminate_wait(scope: Scope, event: Event, around: DecisionContext) -> StartWait | None:
    """Terminates of a placement group start together, each at its own NotBefore at the latest."""
    if not scope.is_placement_group or event.rules.kind is not Kind.TERMINATE or around.now >= event.not_before:
        return None
    for other in scope.live_events(EventState.SCHEDULED):
        if other.rules.kind is Kind.TERMINATE and (_notice_wait(other, around) or _grace_wait(other, around)):
            text = f"event {other.id}, a Terminate of the same placement group that is not approved yet"
            return StartWait(reason=WaitReason.TERMINATES, text=text, until=event.not_before)
    return None


def _is_gate_released(event: Event, around: DecisionContext) -> bool:
    return bool(event.gate_id) and around.is_gate_released(event.gate_id)


def _gate_wait(event: Event, around: DecisionContext) -> StartWait | None:
    if not event.gate_id or around.is_gate_released(event.gate_id):
        return None
    return _closed_gate_wait(event)


def _closed_gate_wait(event: Event) -> StartWait:
    return StartWait(reason=WaitReason.GATE, text=f"the other VMs on host {event.host}, which are not ready yet")
