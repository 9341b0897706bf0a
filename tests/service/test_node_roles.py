"""What a control node that is not active decides: when it takes the lease, and where it forwards calls."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.cluster.node_roles import (
    MIN_FREE_BYTES,
    StandbyView,
    clock_problem,
    forwarding_target,
    name_conflict,
    reason_not_to_take,
    takeover_text,
    was_interrupted,
)
from forewarn.cluster.record import LeaseRow
from forewarn.core.control_node import NodeRow

C1, C2 = "https://c1:8443", "https://c2:8443"


def a_lease(**facts: Any) -> LeaseRow:
    """A lease of c1 that has just expired."""
    default: dict[str, Any] = {"term": 7, "holder": "c1", "url": C1, "number": 3, "seq": 9, "clock": 100.0}
    default |= {"remaining_s": -0.1, "server_time": 100.0, "record_id": "r"}
    return LeaseRow(**{**default, **facts})


def a_view(**facts: Any) -> StandbyView:
    lease = a_lease(**{name: facts.pop(name) for name in ("remaining_s", "term") if name in facts})
    return StandbyView(**{"lease": lease, "clock_difference_s": 0.0, **facts})


TAKES = {
    "the lease has expired": a_view(),
    "its clock differs a little": a_view(clock_difference_s=-1.9),
    "it resigned long ago": a_view(since_resigned_s=11.0, resigned_term=7),
    "another node has had the lease since it resigned": a_view(since_resigned_s=1.0, resigned_term=6),
    "nobody has ever held it": a_view(term=0, remaining_s=-1.0),
    "its disk has enough space": a_view(free_bytes=MIN_FREE_BYTES),
    "its disk is full, and no other node takes it": a_view(free_bytes=0, remaining_s=-10.0),
}
DOES_NOT_TAKE = {
    "the lease is held": (a_view(remaining_s=0.5), "control node c1 is active"),
    "its clock is ahead": (a_view(clock_difference_s=2.1), "its clock is 2.1 s ahead of that of PostgreSQL"),
    "its clock is behind": (a_view(clock_difference_s=-30.0), "its clock is 30.0 s behind that of PostgreSQL"),
    "it has just resigned": (a_view(since_resigned_s=9.0, resigned_term=7), "it has resigned"),
    "its disk is almost full": (
        a_view(free_bytes=MIN_FREE_BYTES - 1),
        "the disk with its copy has only 8.0 MiB free, so it",
    ),
}


@pytest.mark.parametrize("view", TAKES.values(), ids=TAKES)
def test_a_standby_takes_the_lease(view: StandbyView) -> None:
    assert reason_not_to_take(view) == ""


@pytest.mark.parametrize(("view", "reason"), DOES_NOT_TAKE.values(), ids=DOES_NOT_TAKE)
def test_a_standby_leaves_the_lease(view: StandbyView, reason: str) -> None:
    assert reason_not_to_take(view).startswith(reason)


def test_a_clock_that_differs_by_up_to_two_seconds_is_no_problem() -> None:
    assert [clock_problem(difference) for difference in (-2.0, 0.0, 2.0)] == ["", "", ""]


@pytest.mark.parametrize(
    ("lease", "target"),
    [
        (None, ""),
        (a_lease(remaining_s=1.0), C1),
        (a_lease(remaining_s=0.0), ""),
        (a_lease(remaining_s=1.0, url=C2), ""),
    ],
    ids=["not read yet", "held", "expired", "held by the predecessor of this process"],
)
def test_calls_are_forwarded_to_the_holder_of_the_lease(lease: LeaseRow | None, target: str) -> None:
    assert forwarding_target(lease, C2) == target


@pytest.mark.parametrize(
    ("known", "conflicts"),
    [
        (NodeRow(name="c2", url=C2, role="standby", version="1", last_seen_ago_s=0.5), False),
        (NodeRow(name="c2", url=C1, role="standby", version="1", last_seen_ago_s=7.0), False),
        (NodeRow(name="c2", url=C1, role="standby", version="1", last_seen_ago_s=0.5), True),
    ],
    ids=["the same node, started again", "a node that has moved", "another node"],
)
def test_a_name_belongs_to_one_node(known: NodeRow, conflicts: bool) -> None:
    assert bool(name_conflict(C2, known)) == conflicts


@pytest.mark.parametrize(
    ("lease", "interrupted"),
    [
        (a_lease(remaining_s=-5.0), False),
        (a_lease(remaining_s=-30.0), False),
        (a_lease(remaining_s=-31.0), True),
        (a_lease(term=0), True),
    ],
)
def test_vms_could_not_poll_if_nobody_was_active_for_half_a_minute(lease: LeaseRow, interrupted: bool) -> None:
    assert was_interrupted(lease) == interrupted


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (a_lease(), "control passed from c1 to c2, term 8, after 3.4 s"),
        (a_lease(holder="c2"), "control node c2 is active again, term 8, after 3.4 s"),
        (a_lease(term=0), "control node c2 is active, term 8"),
    ],
)
def test_the_history_says_how_control_passed(before: LeaseRow, text: str) -> None:
    assert takeover_text(before=before, node="c2", term=8, after_s=3.41) == text
