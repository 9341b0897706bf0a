"""The status card of a page: the live event that matters next, and what the user may do with it.

The pages of events, VMs, scopes, hosts and rollouts begin with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.access import Right
from forewarn.core.cause import verb_noun
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.explain.explanation import ending_text, event_kind_text, join_names, started_without_notice
from forewarn.core.lifecycle import awaits_approval
from forewarn.core.release import WaitReason
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.web.context import RequestContext
from forewarn.web.portal.states import event_state
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.routing import named_event
from forewarn.web.views import BaseView, ViewBuilder


class EventStatusCard(BaseView, frozen=True, kw_only=True):
    """An event on a status card: its state, what it waits for, and the forms that the user may submit."""

    id: str  # the id of the event
    title: str  # kind and VMs, such as `Reboot of web-0`
    state: str  # scheduled, approved (and not started), started, finished, failed, withdrawn or not needed
    text: str  # a sentence: what it waits for, what is in progress, or how it ended
    starts_at: Timestamp | None  # when it starts, or its wait ends, at the latest; None: not known, now or started
    needs_approval: bool  # before `starts_at` only an approval starts it
    started_at: Timestamp | None  # None: not started, or over
    may_approve: bool  # it awaits approval, and the user has the right
    may_withdraw: bool  # it has not started, and the user has the right
    others: int  # how many live events the page has beside this one


def may_approve_event(context: RequestContext, event: Event) -> bool:
    """Return whether an event awaits approval, and the user has the right to approve it over each VM."""
    if not awaits_approval(event):
        return False
    return context.principal.may_all(Right.APPROVE, named_event(context, HandlerCall(path_params={"id": event.id})))


def _may_withdraw_event(context: RequestContext, event: Event) -> bool:
    return event.status is EventState.SCHEDULED and context.principal.may(Right.PLATFORM, ROOT_RESOURCE)


def event_status_card(context: RequestContext, event: Event, *, others: int = 0) -> EventStatusCard:
    event = context.visibility.shown_event(event)
    wait = ViewBuilder(context).pending_wait(event)
    return EventStatusCard(
        id=event.id,
        title=f"{event_kind_text(event)} of {join_names(event.vms)}",
        state=event_state(event),
        text=_status_sentence(event, wait.text if wait else ""),
        starts_at=timestamp(wait.until if wait else None),
        needs_approval=event.rules.has_impact and wait is not None and wait.reason is WaitReason.NOTICE,
        started_at=timestamp(event.started_at if event.is_live else None),
        may_approve=may_approve_event(context, event),
        may_withdraw=_may_withdraw_event(context, event),
        others=others,
    )


def next_event_card(context: RequestContext, events: Iterable[Event]) -> EventStatusCard | None:
    """Return the card of the live event that matters most among these; None if none is live."""
    live = sorted((event for event in events if event.is_live), key=_urgency)
    return event_status_card(context, live[0], others=len(live) - 1) if live else None


def _urgency(event: Event) -> tuple[bool, float, int]:
    has_started = event.status is EventState.STARTED
    return (not has_started, event.not_before if not has_started else -math.inf, event.seq)


def _status_sentence(event: Event, wait_text: str) -> str:
    if event.ending is not None:
        if event.ending is Ending.FINISHED and event.acts:
            return f"The {verb_noun(event.rules.verb)} of {join_names([act.name for act in event.acts])} was performed."
        text = ending_text(event)
        return f"{text[0].upper()}{text[1:]}."
    if event.status is EventState.SCHEDULED:
        approved = f"Approved by {event.approved_by}; it waits" if event.approved_at is not None else "Waits"
        return f"{approved} for {wait_text}." if wait_text else "It starts now."
    notice = " It started without notice." if started_without_notice(event) else ""
    names = [act.name for act in event.unfinished_acts]
    if not names:
        return f"Every act is done; the event stays listed until its settling time is over.{notice}"
    return f"The {verb_noun(event.rules.verb)} of {join_names(names)} is in progress.{notice}"
