"""The state of a request: one definition for all interfaces (spec §9)."""

from __future__ import annotations

import pytest

from forewarn.core.cause import Cause
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.replay import Replay, ReplayEnding
from forewarn.core.request import (
    MaintenanceRequest,
    RequestedOperation,
    Rollout,
    RolloutImpact,
    RolloutState,
    RolloutTally,
)
from forewarn.core.request_state import RequestState, request_state


def an_event(status: EventState, ending: Ending | None = None) -> Event:
    return Event(
        id="E",
        scope_id="s",
        request_id="r",
        cause=Cause.USER_RESTART,
        requested_by="ann",
        vms=("a",),
        published_at=0,
        not_before=1,
        status=status,
        ending=ending,
    )


def a_request(ask: RequestedOperation = RequestedOperation.RESTART) -> MaintenanceRequest:
    return MaintenanceRequest(id="r", operation=ask, requested_by="ann", requested_at=0, targets=("a",))


SCHEDULED, STARTED = an_event(EventState.SCHEDULED), an_event(EventState.STARTED)
FINISHED, FAILED = an_event(EventState.OVER, Ending.FINISHED), an_event(EventState.OVER, Ending.FAILED)
WITHDRAWN, NOT_NEEDED = an_event(EventState.OVER, Ending.WITHDRAWN), an_event(EventState.OVER, Ending.NOT_NEEDED)
STATES = [
    pytest.param([SCHEDULED], RequestState.IN_PROGRESS, id="an event is scheduled"),
    pytest.param([FAILED, STARTED], RequestState.IN_PROGRESS, id="an event is started, another has failed"),
    pytest.param([SCHEDULED, WITHDRAWN], RequestState.IN_PROGRESS, id="an event is scheduled, another was withdrawn"),
    pytest.param([FINISHED], RequestState.SUCCEEDED, id="finished"),
    pytest.param([], RequestState.SUCCEEDED, id="there was nothing to do"),
    pytest.param([FINISHED, FAILED], RequestState.FAILED, id="one failed"),
    pytest.param([WITHDRAWN, FAILED], RequestState.FAILED, id="one failed, one was withdrawn"),
    pytest.param([WITHDRAWN], RequestState.CANCELED, id="withdrawn"),
    pytest.param([WITHDRAWN, NOT_NEEDED], RequestState.CANCELED, id="withdrawn and not needed"),
    pytest.param([FINISHED, WITHDRAWN], RequestState.SUCCEEDED, id="one finished, one was withdrawn"),
    pytest.param([NOT_NEEDED], RequestState.SUCCEEDED, id="not needed"),
    pytest.param([FINISHED, NOT_NEEDED], RequestState.SUCCEEDED, id="finished and not needed"),
]


@pytest.mark.parametrize(("events", "state"), STATES)
def test_the_state_of_a_request_follows_from_its_events(events: list[Event], state: RequestState) -> None:
    """Spec §9."""
    assert request_state(a_request(), events, planned=0, skipped=False) is state


def test_a_request_with_events_to_publish_is_in_progress() -> None:
    assert request_state(a_request(), [FINISHED], planned=1, skipped=False) is RequestState.IN_PROGRESS


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], RequestState.CANCELED),
        ([WITHDRAWN], RequestState.CANCELED),
        ([FINISHED], RequestState.SUCCEEDED),
        ([FAILED], RequestState.FAILED),
    ],
)
def test_a_skipped_part_of_a_user_operation_counts_as_a_withdrawal(events: list[Event], state: RequestState) -> None:
    assert request_state(a_request(), events, planned=0, skipped=True) is state


@pytest.mark.parametrize("ask", [RequestedOperation.DEGRADE, RequestedOperation.FAIL, RequestedOperation.ROLLOUT])
def test_a_skipped_part_of_work_on_a_host_was_not_needed(ask: RequestedOperation) -> None:
    """Spec §6.4: a VM that has left the host is no longer hit."""
    assert request_state(a_request(ask), [], planned=0, skipped=True) is RequestState.SUCCEEDED


def a_rollout(progress: RolloutState, *, closed: bool = True, **counts: int) -> MaintenanceRequest:
    numbers = {"total": 3, "done": 0, "failed": 0, "withdrawn": 0, "started": 0, "scheduled": 0, "waiting": 0, **counts}
    tally = RolloutTally(**numbers) if closed else None
    rollout = Rollout(impact=RolloutImpact.UPDATE, scope_id="s", progress=progress, closed=closed, tally=tally)
    return MaintenanceRequest(
        id="r",
        operation=RequestedOperation.ROLLOUT,
        requested_by="ann",
        requested_at=0,
        targets=("s",),
        rollout=rollout,
    )


@pytest.mark.parametrize(
    ("request_", "state"),
    [
        pytest.param(a_rollout(RolloutState.PAUSED, closed=False), RequestState.IN_PROGRESS, id="paused"),
        pytest.param(a_rollout(RolloutState.ABORTED, closed=False), RequestState.IN_PROGRESS, id="being aborted"),
        pytest.param(a_rollout(RolloutState.COMPLETED, done=3), RequestState.SUCCEEDED, id="completed"),
        pytest.param(a_rollout(RolloutState.COMPLETED, done=2, failed=1), RequestState.FAILED, id="with failures"),
        pytest.param(a_rollout(RolloutState.STOPPED, failed=1, waiting=2), RequestState.FAILED, id="stopped"),
        pytest.param(a_rollout(RolloutState.ABORTED, withdrawn=1, waiting=2), RequestState.CANCELED, id="withdrawn"),
        pytest.param(a_rollout(RolloutState.ABORTED, waiting=3), RequestState.CANCELED, id="aborted before its start"),
        pytest.param(a_rollout(RolloutState.ABORTED, done=1, waiting=2), RequestState.SUCCEEDED, id="done in part"),
    ],
)
def test_the_state_of_a_rollout_follows_from_its_tally(request_: MaintenanceRequest, state: RequestState) -> None:
    """Its events may be pruned when it has ended."""
    assert request_state(request_, [], planned=0, skipped=False) is state


@pytest.mark.parametrize(
    ("ended", "state"),
    [
        (None, RequestState.IN_PROGRESS),
        (ReplayEnding.FINISHED, RequestState.SUCCEEDED),
        (ReplayEnding.STOPPED, RequestState.CANCELED),
        (ReplayEnding.INTERRUPTED, RequestState.CANCELED),
    ],
)
def test_the_state_of_a_replay_follows_from_how_it_ended(ended: ReplayEnding | None, state: RequestState) -> None:
    replay = Replay(vm="a", name="a", scope_id="s", loop_started_at=0, steps=1, length_s=1, outcome=ended)
    request = MaintenanceRequest(
        id="r", operation=RequestedOperation.REPLAY, requested_by="ann", requested_at=0, targets=("a",), replay=replay
    )
    assert request_state(request, [], planned=0, skipped=False) is state
