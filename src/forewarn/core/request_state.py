"""Computes the state of a request (waiting, started, finished, ...) from its events (spec §9).

The only definition: the API, the ARM facade and the CLI word this answer.
"""

from __future__ import annotations

from forewarn.core.event import Ending, Event, EventState


def request_state(events: list[Event], *, to_come: bool, skipped: bool) -> str:
    """Return waiting, started, finished, failed or withdrawn, computed from all events of the request.

    It is started from the first start on until all events are over; then failed if one failed, withdrawn if all were
    withdrawn. `to_come`: more events will follow. `skipped`: part of the request was no longer possible, which is a
    failure if no event exists.
    """
    if any(event.status is EventState.STARTED for event in events):
        return "started"
    over = [event for event in events if event.status is EventState.OVER]
    if to_come or len(over) < len(events):
        return "started" if any(event.ending is not Ending.WITHDRAWN for event in over) else "waiting"
    endings = {event.ending for event in over}
    if Ending.FAILED in endings or (skipped and not events):
        return "failed"
    return "withdrawn" if endings == {Ending.WITHDRAWN} else "finished"
