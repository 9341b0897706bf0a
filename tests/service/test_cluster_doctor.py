"""`forewarn doctor` on a control node: who can take over, and what is wrong with nodes, record and bus."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from forewarn.core.control_node import NodeRow
from forewarn.errors import Unavailable
from forewarn.service.doctor import cluster_checks


class Node:
    """A control node that knows these nodes."""

    name, active_name, active_term, problem = "c1", "c1", 3, ""
    clock_difference_s = 0.0

    def __init__(self, *nodes: NodeRow) -> None:
        self.nodes: Sequence[NodeRow] = nodes

    def resign(self) -> None:
        raise AssertionError


def a_node(
    name: str, role: str = "standby", *, number: int = 5000, status: str = "", last_seen_ago_s: float = 0.5
) -> NodeRow:
    return NodeRow(
        name=name,
        url=f"https://{name}",
        role=role,
        version="1",
        number=number,
        status=status,
        last_seen_ago_s=last_seen_ago_s,
    )


def check(*others: NodeRow, problems: Sequence[str] = ()) -> dict[str, tuple[bool, str]]:
    node = Node(a_node("c1", "active"), *others)
    found = asyncio.run(cluster_checks(node, "postgresql://db/x", None, lambda url: problems))
    return {result.name: (result.ok, result.text) for result in found}


def test_a_cluster_without_problems_names_who_can_take_over() -> None:
    assert check(a_node("c2", number=4990)) == {
        "standby": (True, "can take over: c2 (10 behind)"),
        "record": (True, "the record in PostgreSQL is complete, and its standby follows"),
    }


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ((), "no other control node can take over"),
        ((a_node("c2", last_seen_ago_s=60),), "no other control node can take over"),
        ((a_node("c2", status="its clock is 9.0 s behind"),), "no other control node can take over"),
        ((a_node("c2", number=1),), "no other control node can take over: c2 is 4999 groups of writes behind"),
    ],
    ids=["alone", "silent", "wrong clock", "far behind"],
)
def test_a_cluster_in_which_nobody_can_take_over_says_so(others: Sequence[NodeRow], text: str) -> None:
    assert check(*others)["standby"] == (False, text)


def test_the_problem_of_each_node_is_shown() -> None:
    assert check(a_node("c2", status="its clock is 9.0 s behind"))["c2"] == (False, "its clock is 9.0 s behind")


def test_a_record_with_problems_or_out_of_reach_is_shown() -> None:
    assert check(problems=["no standby follows"])["record"] == (False, "no standby follows")

    def unreachable(url: str) -> Sequence[str]:
        raise Unavailable("PostgreSQL does not answer")

    found = asyncio.run(cluster_checks(Node(), "postgresql://db/x", None, unreachable))
    assert [(result.name, result.text) for result in found if result.name == "record"] == [
        ("record", "PostgreSQL does not answer")
    ]
