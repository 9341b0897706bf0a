"""The plan of a move over two host nodes, in every order of events: never two copies, never lost, never endless."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.cluster.move_plan import MoveProgress, StepOrder, StepWait, after_silence, next_step
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.interface import ActDone
from forewarn.machines.moves import MoveHandover, MoveRelease, MoveStep, StepReport
from tests.support.move_plan_model import MovePlanModel, PlanViolation


def a_move(*, abrupt: bool = False) -> Act:
    return Act(
        id="a", event_id="e", vm="web", name="web", verb=Verb.REDEPLOY, from_host="h1", to_host="h2", abrupt=abrupt
    )


@pytest.mark.parametrize("abrupt", [False, True], ids=["planned", "abrupt"])
@pytest.mark.parametrize("comes_back", [False, True], ids=["stays down", "comes back"])
def test_a_move_never_makes_two_copies_nor_waits_for_ever_for_a_host_that_is_down(
    abrupt: bool, comes_back: bool
) -> None:
    assert MovePlanModel(a_move(abrupt=abrupt), comes_back=comes_back).explore() > 1000


def never_ends(*arguments: Any, is_destination_down: bool, **facts: Any) -> StepOrder | StepWait | ActDone:
    return after_silence(*arguments, is_destination_down=False, **facts)


def takes_silence_for_death(*arguments: Any, is_destination_down: bool, **facts: Any) -> StepOrder | StepWait | ActDone:
    return after_silence(*arguments, is_destination_down=True, **facts)


def ends_at_once(
    progress: MoveProgress, order: StepOrder, *arguments: Any, is_destination_down: bool, **facts: Any
) -> StepOrder | StepWait | ActDone:
    if is_destination_down and order.host == progress.act.to_host:
        return ActDone(False, "the destination is down")
    return after_silence(progress, order, *arguments, is_destination_down=is_destination_down, **facts)


DEFECTS: dict[str, tuple[dict[str, Any], str]] = {
    "waits for a destination that is down": (
        {"decide_after_silence": never_ends, "comes_back": False},
        "the move can never end",
    ),
    "takes silence for death": ({"decide_after_silence": takes_silence_for_death}, "two running copies"),
    "does not take a released VM back": ({"decide_after_silence": ends_at_once}, "has not left the VM running"),
    "reports a release that was taken back": ({"forgets_returns": True}, "two running copies"),
}


@pytest.mark.parametrize(("wrong", "violation"), DEFECTS.values(), ids=DEFECTS)
def test_the_model_finds_a_wrong_plan(wrong: dict[str, Any], violation: str) -> None:
    with pytest.raises(PlanViolation, match=violation):
        MovePlanModel(a_move(), **wrong).explore()


def test_a_move_to_a_host_that_is_down_ends_with_the_reason() -> None:
    progress = MoveProgress(a_move())
    progress.record(MoveStep.DESCRIBE, StepReport.of(ActDone(True)))
    order = next_step(progress)
    assert isinstance(order, StepOrder)
    facts: dict[str, Any] = {"is_down": False, "may_fence": False, "real_now": 0.0}
    waiting = after_silence(progress, order, "h2 is silent", **facts)
    assert waiting == StepWait("h2 is silent", "h2")
    following = after_silence(progress, order, "h2 is silent", is_destination_down=True, **facts)
    assert following == StepOrder("h1", MoveStep.WITHDRAW, MoveHandover())
    progress.record(MoveStep.WITHDRAW, StepReport.of(ActDone(True)))
    assert next_step(progress) == ActDone(False, "h2 went down before web was known to run there")


def test_a_vm_that_was_released_to_a_host_that_is_down_is_taken_back() -> None:
    progress = MoveProgress(a_move(), lost_destination="h2 went down before web was known to run there")
    progress.record(MoveStep.WITHDRAW, StepReport.of(ActDone(True), MoveHandover(release=MoveRelease.STOPPED)))
    order = next_step(progress)
    assert isinstance(order, StepOrder)
    assert (order.host, order.step) == ("h1", MoveStep.RETURN)
    progress.record(order.step, StepReport.of(ActDone(True, "web was started on h1 again")))
    reason = "h2 went down before web was known to run there; web was started on h1 again"
    assert next_step(progress) == ActDone(False, reason)


def test_a_restarted_move_to_a_host_that_is_down_says_that_its_vm_was_not_taken_back() -> None:
    progress = MoveProgress(a_move(), lost_destination="h2 went down; h1 is down, too")
    progress.record(MoveStep.WITHDRAW, StepReport.of(ActDone(True, "web may be on h2")))
    assert next_step(progress) == ActDone(False, "h2 went down; h1 is down, too; web may be on h2")
