"""One event as a timeline tells it: its instants, its state in a word, and its notice in words."""

from __future__ import annotations

import math

from forewarn.console.views import View
from forewarn.core.event import Ending, Event
from forewarn.core.story import had_no_notice, kind_of, listed, notice_of, span

# Every state, with the sign that tells it without colour.
SIGNS = {
    "scheduled": "◇",
    "approved": "✓",
    "started": "▶",
    "finished": "●",
    "failed": "✕",
    "withdrawn": "⊘",
}


class Lane(View, frozen=True, kw_only=True):
    id: str
    scope: str
    title_of_scope: str
    kind: str
    listed: bool
    cause: str
    vms: tuple[str, ...]
    state: str  # one of SIGNS
    published_at: float
    not_before: float
    approved_at: float | None
    approved_by: str
    started_at: float | None
    over_at: float | None
    promised_s: float | None  # of notice; None: it came without
    given_s: float | None
    notice: str
    waits_for: str

    @property
    def label(self) -> str:
        return f"{self.kind} of {listed(self.vms)}"

    def ends_at(self, now: float) -> float:
        """When the bar ends, as far as that can be said now."""
        if self.over_at is not None:
            return self.over_at
        return now if self.started_at is not None else max(self.not_before, now)


def lane_of(event: Event, *, title_of_scope: str, waits_for: str = "") -> Lane:
    return Lane(
        id=event.id,
        scope=event.scope_id,
        title_of_scope=title_of_scope,
        kind=kind_of(event),
        listed=event.listed,
        cause=event.cause,
        vms=event.vms,
        state=state_of(event),
        published_at=event.published_at,
        not_before=event.not_before,
        approved_at=event.approved_at,
        approved_by=event.approved_by,
        started_at=event.started_at,
        over_at=event.over_at,
        promised_s=_promised_s(event),
        given_s=None if event.started_at is None else event.started_at - event.published_at,
        notice=_notice(event),
        waits_for=waits_for,
    )


def state_of(event: Event) -> str:
    if event.ending is not None:
        return str(event.ending)
    if event.started_at is not None:
        return "started"
    return "scheduled" if event.approved_at is None else "approved"


def _promised_s(event: Event) -> float | None:
    """NotBefore was rounded up to a whole second: the rest was not asked for."""
    if not event.listed or had_no_notice(event):
        return None
    return math.floor(event.not_before - event.published_at)


def _notice(event: Event) -> str:
    told = ", ".join(notice_of(event))
    if event.ending is Ending.WITHDRAWN and event.over_at is not None:
        return f"{told}, withdrawn after {span(event.over_at - event.published_at)}"
    return told
