"""Records publication, start and end of events of a case, from the commits of the store."""

from __future__ import annotations

from collections.abc import Callable

from forewarn.core.event import Event, EventState
from forewarn.crash_test.case_recorder import CaseRecorder
from forewarn.crash_test.timeline import EventEnded, EventPublished, EventStarted
from forewarn.store.interface import AppliedCommit


def commit_recorder(recorder: CaseRecorder) -> Callable[[AppliedCommit], None]:
    """Return a subscriber for `Store.subscribe` that records each publication, start and end of an event."""
    recorded: set[tuple[str, EventState]] = set()

    def is_new(event: Event, state: EventState) -> bool:
        if (event.id, state) in recorded:
            return False
        recorded.add((event.id, state))
        return True

    def on_commit(applied: AppliedCommit) -> None:
        for event in applied.commit.events:
            if not event.listed:
                continue
            if is_new(event, EventState.SCHEDULED):
                recorder.record(_publication(event, recorder))
            if event.started_at is not None and is_new(event, EventState.STARTED):
                recorder.record(EventStarted(at=recorder.since_start(event.started_at), event=event.id))
            if event.over_at is not None and is_new(event, EventState.OVER):
                at = recorder.since_start(event.over_at)
                recorder.record(EventEnded(at=at, event=event.id, is_withdrawn=event.is_withdrawn))

    return on_commit


def _publication(event: Event, recorder: CaseRecorder) -> EventPublished:
    return EventPublished(
        at=recorder.since_start(event.published_at),
        event=event.id,
        kind=str(event.rules.kind),
        vms=event.vms,
        not_before=None if event.started_at is not None else recorder.since_start(event.not_before),
    )
