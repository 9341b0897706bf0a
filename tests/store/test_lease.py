"""A held lease is renewed from a thread, suspended when renewals fail, and ended when another node takes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from forewarn.cluster import lease as lease_module
from forewarn.cluster.lease import HeldLease, LeaseState
from forewarn.cluster.record import LEASE_S, Deposed, RecordUnavailable
from forewarn.conformance.record import FIRST_ROW, group_after
from tests.support.memory_record import MemoryRecordServer
from tests.support.replicated_store import take

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _quick_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "RENEWAL_INTERVAL_S", 0.005)
    monkeypatch.setattr(lease_module, "_WATCH_INTERVAL_S", 0.005)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Node:
    """A server, a clock that the test moves, and a node that has taken the lease."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.server = MemoryRecordServer(lambda: self.now)
        self.states: list[LeaseState] = []
        self.is_alive = True
        self.held: HeldLease

    @contextmanager
    def holding(self, **options: Any) -> Iterator[HeldLease]:
        record = self.server.connect()
        self.held = HeldLease(
            record,
            take(record),
            sent_at=self.now,
            on_change=self.states.append,
            has_progress=lambda: self.is_alive,
            monotonic=lambda: self.now,
            **options,
        )
        self.held.start()
        try:
            yield self.held
        finally:
            self.server.start()
            self.server.add_standby()
            self.held.stop()


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_lease_is_renewed_again_and_again(node: Node) -> None:
    with node.holding() as held:
        for _ in range(5):
            node.now += LEASE_S - 0.5
            wait_until(lambda: held.margin_s == LEASE_S)
            held.check()
        assert node.server.expires_at >= node.now
        assert (held.state, held.explanation, node.states) == (LeaseState.HELD, "", [])


def test_a_lease_is_suspended_three_seconds_after_the_last_renewal(node: Node) -> None:
    with node.holding() as held:
        node.server.stop()
        node.now = held._sent_at + LEASE_S - 0.001
        assert [held.state, held.margin_s > 0] == [LeaseState.HELD, True]
        node.now += 0.001
        assert [held.state, held.margin_s > 0] == [LeaseState.SUSPENDED, False]
        wait_until(lambda: node.states == [LeaseState.SUSPENDED])
        wait_until(lambda: "cannot be reached" in held.explanation)
        with pytest.raises(RecordUnavailable, match="the lease was not renewed for 3 s: the record cannot be reached"):
            held.check()


def test_a_suspended_lease_that_nobody_took_is_held_again(node: Node) -> None:
    with node.holding() as held:
        node.server.stop()
        node.now += 60
        wait_until(lambda: node.states == [LeaseState.SUSPENDED])
        node.server.start()
        wait_until(lambda: node.states == [LeaseState.SUSPENDED, LeaseState.HELD])
        held.check()


def test_a_lease_that_another_node_took_is_over(node: Node) -> None:
    with node.holding() as held:
        node.server.stop()
        node.now += 60
        wait_until(lambda: node.states == [LeaseState.SUSPENDED])
        node.server.term += 1  # another node has taken it
        node.server.start()
        wait_until(lambda: node.states == [LeaseState.SUSPENDED, LeaseState.DEPOSED])
        with pytest.raises(Deposed, match="another control node"):
            held.check()


def test_a_missing_standby_is_named(node: Node) -> None:
    with node.holding() as held:
        node.server.remove_standby()
        wait_until(lambda: node.server.waiting > 0)
        node.now += LEASE_S
        wait_until(lambda: "waits for its synchronous standby" in held.explanation)
        assert held.state is LeaseState.SUSPENDED
        node.server.add_standby()
        wait_until(lambda: held.margin_s > 0)
        assert held.explanation == ""


def test_a_commit_renews_the_lease_too(node: Node) -> None:
    with node.holding() as held:
        node.is_alive = False  # no other renewals
        node.now += 2
        held.renewed(node.now)
        node.now += 2
        assert held.state is LeaseState.HELD
        held.renewed(0.0)  # an answer that came late does not shorten it
        assert held.margin_s == LEASE_S - 2


def test_a_lease_is_not_renewed_while_the_event_loop_stands_still(node: Node) -> None:
    with node.holding() as held:
        node.is_alive = False
        node.now += LEASE_S
        wait_until(lambda: node.states == [LeaseState.SUSPENDED])
        assert "too busy" in held.explanation
        node.is_alive = True
        wait_until(lambda: held.state is LeaseState.HELD)


def test_a_commit_that_finds_another_holder_ends_the_lease(node: Node) -> None:
    with node.holding() as held:
        held.deposed("control node 'c2' has taken the lease")
        assert node.states == [LeaseState.DEPOSED]
        assert "'c2'" in held.explanation


def test_a_released_lease_can_be_taken_at_once(node: Node) -> None:
    with node.holding() as held:
        held.release()
        assert node.states == [LeaseState.RELEASED]
        take(node.server.connect(), "c2")
        with pytest.raises(Deposed):
            held.check()


def test_a_release_does_not_wait_for_a_missing_standby_of_a_renewal(node: Node) -> None:
    with node.holding() as held:
        node.server.remove_standby()
        wait_until(lambda: node.server.waiting > 0)
        held.stop()
        assert held.state is LeaseState.RELEASED


def test_the_log_is_pruned_now_and_then(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_LOG_KEPT_S", 1.0)
    record = node.server.connect()
    with node.holding() as held:
        for number in range(1, 1004):
            record.commit(group_after(held.lease, FIRST_ROW, number=number))
        for _ in range(100):
            node.now += 2
            wait_until(lambda: held.margin_s == LEASE_S)
        wait_until(lambda: len(node.server.log) == 1000)
