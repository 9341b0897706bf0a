"""Computes the state of a request from its events (spec §9).

This is the only definition: our API, Azure's API, the portal, explanations and the command line show its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from forewarn.core.event import Ending, Event
from forewarn.core.replay import ReplayEnding
from forewarn.core.request import MaintenanceRequest, RequestedOperation

_HOST_WORK = frozenset({RequestedOperation.ROLLOUT, RequestedOperation.DEGRADE, RequestedOperation.FAIL})


class RequestState(StrEnum):
    """The state of a request (spec §9). `request_state` computes it, and says when which applies."""

    IN_PROGRESS = "in progress"  # an event of it is planned or not over (or one that it approved), or it is open
    SUCCEEDED = "succeeded"  # nothing failed, and something was done or nothing was needed; or its replay finished
    FAILED = "failed"  # one of its acts failed; in a rollout, the tally counts a failed VM
    CANCELED = "canceled"  # nothing was done: events were withdrawn or never published; or its replay ended early


def request_state(request: MaintenanceRequest, events: Sequence[Event], *, planned: int, skipped: bool) -> RequestState:
    """Return the state of a request; `events` are all events that it published or approved.

    When nothing is planned, live or open: FAILED if an event failed, CANCELED if some were withdrawn and none finished,
    else SUCCEEDED. `skipped`: part of it became impossible before its event was published. That counts as a withdrawal,
    but as not needed for work on a host, which the VM has left (spec §6.4). A rollout is judged by its tally, where VMs
    that still wait count as withdrawn.
    """
    if planned or request.is_open or any(event.is_live for event in events):
        return RequestState.IN_PROGRESS
    if request.replay is not None:
        finished = request.replay.outcome is ReplayEnding.FINISHED
        return RequestState.SUCCEEDED if finished else RequestState.CANCELED
    if request.rollout is not None and (tally := request.rollout.tally) is not None:
        # VMs that wait when a rollout has ended were never announced.
        return _final_state(failed=tally.failed, finished=tally.done, withdrawn=tally.withdrawn + tally.waiting)
    endings = [event.ending for event in events]
    return _final_state(
        failed=endings.count(Ending.FAILED),
        finished=endings.count(Ending.FINISHED),
        withdrawn=endings.count(Ending.WITHDRAWN) + int(skipped and request.operation not in _HOST_WORK),
    )


def _final_state(*, failed: int, finished: int, withdrawn: int) -> RequestState:
    if failed:
        return RequestState.FAILED
    return RequestState.CANCELED if withdrawn and not finished else RequestState.SUCCEEDED
