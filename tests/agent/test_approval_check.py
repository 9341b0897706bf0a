"""Which VM approves for all listed VMs, and when."""

from __future__ import annotations

import pytest

from forewarn.agent.approval import BoardView, approving_vm, decide_for_all_vms

THREE = ("_Web-0", "web-1", "web-2")


def board(*, ages_s: dict[str, float], ready: str = "") -> BoardView:
    return BoardView(heartbeat_ages_s=ages_s, ready_vms={"E1": frozenset(ready.split())})


@pytest.mark.parametrize(
    ("ages_s", "expected"),
    [
        ({"web-0": 1, "web-1": 1}, "web-0"),
        ({"web-0": 60, "web-1": 1}, "web-1"),
        ({"web-2": 1}, "web-2"),
        ({"other": 1}, ""),
        ({}, ""),
    ],
)
def test_the_first_listed_vm_that_is_alive_approves_and_the_next_when_it_dies(
    ages_s: dict[str, float], expected: str
) -> None:
    assert approving_vm(THREE, board(ages_s=ages_s)) == expected


@pytest.mark.parametrize(
    ("ages_s", "ready", "waited_s", "absent_after_s", "why"),
    [
        pytest.param({"web-0": 0, "web-1": 0, "web-2": 0}, "web-0 web-1 web-2", 0, None, "", id="all ready"),
        pytest.param({"web-0": 0, "web-1": 0, "web-2": 0}, "web-0 web-1", 999, 30, "web-2 not ready", id="one works"),
        pytest.param({"web-0": 0, "web-1": 0, "web-2": 99}, "web-0 web-1 web-2", 0, None, "", id="ready, then died"),
        pytest.param({"web-0": 0, "web-1": 0}, "web-0 web-1", 999, None, "web-2 absent", id="never showed up"),
        pytest.param({"web-0": 0, "web-1": 0, "web-2": 99}, "web-0 web-1", 9, 30, "web-2 absent", id="died, patience"),
        pytest.param({"web-0": 0, "web-1": 0, "web-2": 99}, "web-0 web-1", 30, 30, "", id="died, patience over"),
        pytest.param({"web-0": 0, "web-1": 0}, "web-0 web-1", 30, 30, "", id="never showed up, patience over"),
    ],
)
def test_the_approving_vm_waits_for_live_vms_and_for_absent_ones_as_long_as_the_rule_says(
    ages_s: dict[str, float], ready: str, waited_s: float, absent_after_s: float | None, why: str
) -> None:
    decision = decide_for_all_vms(
        "E1", THREE, "WEB-0", board(ages_s=ages_s, ready=ready), waited_s=waited_s, absent_after_s=absent_after_s
    )
    assert (decision.is_approved, decision.reason) == (not why, why)


def test_a_vm_that_is_not_the_approving_one_never_approves() -> None:
    full = board(ages_s={"web-0": 0, "web-1": 0, "web-2": 0}, ready="web-0 web-1 web-2")
    decision = decide_for_all_vms("E1", THREE, "web-1", full, waited_s=999, absent_after_s=0)
    assert (decision.is_approved, decision.reason) == (False, "web-0 approves for all VMs")
    assert not decide_for_all_vms("E1", THREE, "neighbour", full, waited_s=999, absent_after_s=0).is_approved
