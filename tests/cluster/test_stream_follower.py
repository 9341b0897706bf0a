"""A host node follows its stream whatever the bus does: it never goes back, and it always catches up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forewarn.cluster.host_answers import HostFacts
from forewarn.cluster.messages import (
    Heartbeat,
    HostUpdate,
    JoinAccepted,
    StatePart,
    StreamPosition,
    StreamSource,
)
from forewarn.cluster.stream_follower import (
    ApplyFacts,
    AskPart,
    FollowerAction,
    InstallState,
    SendJoin,
    StreamFollower,
)
from tests.support.host_facts import ModelStream, a_host_scope

SCOPES = ("a", "b", "c")
FIRST = StreamSource(1, "first")


class Node:
    """A follower with its facts; requests that it makes are collected."""

    def __init__(self) -> None:
        self.facts = HostFacts()
        self.follower = StreamFollower()
        self.requests: list[FollowerAction] = []
        self.installs = 0
        self.do(self.follower.start(0.0))

    def do(self, actions: list[FollowerAction]) -> None:
        for action in actions:
            match action:
                case InstallState(facts=facts):
                    self.installs += 1
                    self.facts.install(facts)
                case ApplyFacts(facts=facts):
                    self.facts.apply(facts)
                case _:
                    self.requests.append(action)

    def receive(self, message: Any, now: float) -> None:
        follower = self.follower
        match message:
            case Heartbeat():
                self.do(follower.on_heartbeat(message, now))
            case HostUpdate():
                self.do(follower.on_update(message, now))
            case JoinAccepted():
                self.do(follower.on_joined(message, now))
            case StatePart():
                self.do(follower.on_part(message, now))
            case StreamPosition():
                self.do(follower.on_position(message, now))

    def shown(self) -> dict[str, tuple[int, int]]:
        return {id_: scope.order for id_, scope in self.facts.scopes.items()}


def joined(stream: ModelStream) -> Node:
    """A node that has the complete state of this stream."""
    node = Node()
    serve_requests(node, stream, 0.0)
    assert not node.follower.is_joining
    return node


def serve_requests(node: Node, stream: ModelStream, now: float) -> None:
    """Answer all requests of the node, also those that it makes meanwhile."""
    for _ in range(100):
        if not node.requests:
            return
        request = node.requests.pop(0)
        if isinstance(request, SendJoin):
            node.receive(stream.join(), now)
        elif isinstance(request, AskPart):
            part = stream.part(request.join_id, request.index)
            if part is None:
                node.do(node.follower.on_state_gone(request.join_id, now))
            else:
                node.receive(part, now)
    raise AssertionError("the node never stops asking")


def test_updates_in_order_need_no_second_join() -> None:
    stream = ModelStream(FIRST)
    node = joined(stream)
    for version in range(1, 4):
        node.receive(stream.change("a", 1), 1.0)
        assert node.shown() == {"set:sub/lab/a": (1, version)}
    assert sum(node.follower.joins.values()) == 1


def test_a_missing_number_makes_the_node_ask_for_the_state_at_once() -> None:
    stream = ModelStream(FIRST)
    node = joined(stream)
    stream.change("a", 1)
    node.receive(stream.change("b", 1), 1.0)
    assert node.requests == [SendJoin("gap")]
    serve_requests(node, stream, 1.0)
    assert node.shown() == {"set:sub/lab/a": (1, 1), "set:sub/lab/b": (1, 1)}


def test_updates_that_arrive_while_the_state_is_on_its_way_follow_it() -> None:
    stream = ModelStream(FIRST)
    stream.change("a", 1)
    node = Node()
    reply = stream.join()
    node.receive(stream.change("a", 1), 0.1)
    node.receive(stream.change("b", 1), 0.1)
    node.receive(reply, 0.2)
    assert node.requests[-1] == AskPart(reply.join_id, 1)
    node.requests = node.requests[-1:]
    serve_requests(node, stream, 0.3)
    assert node.shown() == {"set:sub/lab/a": (1, 2), "set:sub/lab/b": (1, 1)}
    assert node.installs == 1


def test_an_update_that_is_missing_after_the_state_makes_the_node_ask_again() -> None:
    stream = ModelStream(FIRST)
    node = Node()
    reply = stream.join()
    stream.change("a", 1)  # lost
    node.receive(stream.change("b", 1), 0.1)
    node.receive(reply, 0.3)
    assert node.shown() == {}
    node.do(node.follower.on_tick(0.5))
    serve_requests(node, stream, 0.5)
    assert set(node.shown()) == {"set:sub/lab/a", "set:sub/lab/b"}


def test_a_state_that_is_older_than_what_is_shown_is_ignored() -> None:
    stream = ModelStream(FIRST)
    node = joined(stream)
    late = stream.join()
    node.receive(stream.change("a", 1), 1.0)
    stream.change("a", 1)  # lost
    node.receive(stream.change("b", 1), 2.0)
    assert node.follower.is_joining
    node.receive(late, 2.1)
    assert node.follower.is_joining
    assert node.shown() == {"set:sub/lab/a": (1, 1)}


def test_a_new_process_with_the_same_term_and_number_is_noticed() -> None:
    stream = ModelStream(FIRST)
    node = joined(stream)
    node.receive(stream.change("a", 1), 1.0)
    second = ModelStream(StreamSource(1, "second"), stream.scopes)
    second.change("b", 1)
    node.receive(second.change("c", 1), 2.0)  # number 2 follows number 1, but of another process
    serve_requests(node, second, 2.0)
    assert set(node.shown()) == {f"set:sub/lab/{name}" for name in SCOPES}


def test_messages_of_a_deposed_node_are_ignored() -> None:
    stream = ModelStream(FIRST)
    node = joined(stream)
    successor = ModelStream(StreamSource(2, "successor"), stream.scopes)
    node.receive(successor.heartbeat(), 1.0)
    serve_requests(node, successor, 1.0)
    before = node.follower.silent_s(5.0)
    node.receive(stream.heartbeat(), 5.0)
    node.receive(stream.change("a", 1), 5.0)
    assert node.shown() == {}
    assert node.follower.silent_s(5.0) == before
    assert node.requests == []


def test_a_stream_that_stays_ahead_makes_the_node_ask_for_the_state() -> None:
    stream = ModelStream(FIRST)
    node = joined(stream)
    stream.change("a", 1)  # lost, and no further update reveals it
    node.receive(stream.position, 10.0)
    node.do(node.follower.on_tick(10.8))
    assert node.requests == []  # the update may still be on its way
    node.do(node.follower.on_tick(10.95))
    assert node.requests == [SendJoin("behind")]


def test_an_update_that_is_only_late_causes_no_join() -> None:
    stream = ModelStream(FIRST)
    node = joined(stream)
    update = stream.change("a", 1)
    node.receive(stream.position, 10.0)
    node.receive(update, 10.1)
    node.do(node.follower.on_tick(10.3))
    assert node.requests == []


def test_a_request_for_the_state_is_repeated_ever_less_often() -> None:
    """Many nodes that all ask at once must not keep the active node from answering any of them."""
    node = Node()
    node.do(node.follower.start(0.0))
    sent_at = [0.0]
    for number in range(1, 1000):
        before = len(node.requests)
        node.do(node.follower.on_tick(number * 0.01))
        if len(node.requests) > before:
            sent_at.append(number * 0.01)
    assert sent_at == pytest.approx([0.0, 0.25, 0.75, 1.75, 3.75, 5.75, 7.75, 9.75])


def test_a_request_that_nobody_received_is_repeated_at_the_next_tick() -> None:
    node = Node()
    node.follower.on_join_unanswered()
    node.do(node.follower.on_tick(0.05))
    assert len(node.requests) == 2


def test_a_scope_that_left_while_the_node_was_cut_off_is_gone_after_the_join() -> None:
    stream = ModelStream(FIRST)
    node = joined(stream)
    node.receive(stream.change("a", 1), 1.0)
    stream.change("a", 0)  # lost
    node.do(node.follower.on_doubt("reconnected", 2.0))
    serve_requests(node, stream, 2.0)
    assert node.shown() == {}


def test_a_late_fact_about_a_scope_that_left_does_not_bring_it_back() -> None:
    facts = HostFacts()
    facts.apply([a_host_scope("a", 4)])
    facts.install([])
    assert facts.apply([a_host_scope("a", 4)]) == []
    assert len(facts.apply([a_host_scope("a", 6)])) == 1


def test_an_older_fact_is_ignored_however_it_arrives() -> None:
    facts = HostFacts()
    facts.apply([a_host_scope("a", 4, epoch=2)])
    assert facts.apply([a_host_scope("a", 3, epoch=2)]) == []
    assert facts.apply([a_host_scope("a", 9, epoch=1)]) == []
    assert facts.install([a_host_scope("a", 3, epoch=2)]) == []
    assert facts.scopes["set:sub/lab/a"].order == (2, 4)


def test_a_new_epoch_counts_as_newer_than_any_version_of_the_old_one() -> None:
    facts = HostFacts()
    facts.apply([a_host_scope("a", 400)])
    assert len(facts.apply([a_host_scope("a", 1, epoch=2)])) == 1


class FollowingAnyBus(RuleBasedStateMachine):
    """Any order of changes, losses, repetitions, delays, restarts and takeovers, then a quiet bus."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.stream = ModelStream(FIRST)
        self.deposed: list[ModelStream] = []
        self.on_the_way: list[Any] = []
        self.node = Node()
        self.newest: dict[str, tuple[int, int]] = {}
        self.sessions = 1

    @rule(name=st.sampled_from(SCOPES), vms=st.integers(0, 2))
    def change(self, name: str, vms: int) -> None:
        self.on_the_way.append(self.stream.change(name, vms))

    @rule()
    def send_heartbeat(self) -> None:
        self.on_the_way.append(self.stream.heartbeat())

    @rule()
    def report_position(self) -> None:
        self.on_the_way.append(self.stream.position)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data(), is_repeated=st.booleans())
    def deliver(self, data: st.DataObject, is_repeated: bool) -> None:
        index = data.draw(st.integers(0, len(self.on_the_way) - 1))
        message = self.on_the_way[index] if is_repeated else self.on_the_way.pop(index)
        self.node.receive(message, self.now)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.on_the_way.pop(data.draw(st.integers(0, len(self.on_the_way) - 1)))

    @precondition(lambda self: self.node.requests)
    @rule(by_deposed=st.booleans(), is_lost=st.booleans())
    def answer(self, by_deposed: bool, is_lost: bool) -> None:
        request = self.node.requests.pop(0)
        if is_lost:
            return
        stream = self.deposed[-1] if by_deposed and self.deposed else self.stream
        if isinstance(request, SendJoin):
            self.on_the_way.append(stream.join())
        elif isinstance(request, AskPart):
            part = stream.part(request.join_id, request.index)
            if part is None:
                self.node.do(self.node.follower.on_state_gone(request.join_id, self.now))
            else:
                self.on_the_way.append(part)

    @rule()
    def restart_the_active_node(self) -> None:
        self.sessions += 1
        self.stream = ModelStream(StreamSource(self.stream.source.term, f"s{self.sessions}"), self.stream.scopes)
        self.stream.versions = self._versions()

    @rule()
    def take_over(self) -> None:
        self.sessions += 1
        self.deposed.append(self.stream)
        source = StreamSource(self.stream.source.term + 1, f"s{self.sessions}")
        versions = self._versions()
        self.stream = ModelStream(source, self.stream.scopes)
        self.stream.versions = versions

    @precondition(lambda self: self.deposed)
    @rule(name=st.sampled_from(SCOPES))
    def send_from_a_deposed_node(self, name: str) -> None:
        """It repeats what it had; it cannot commit, so it has no version of its own."""
        stream = self.deposed[-1]
        stream.number += 1
        facts = (stream.scopes[name],) if name in stream.scopes else ()
        self.on_the_way += [HostUpdate(stream.position, facts), stream.heartbeat()]

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.node.do(self.node.follower.on_tick(self.now))

    @rule()
    def reconnect(self) -> None:
        self.node.do(self.node.follower.on_doubt("reconnected", self.now))

    @invariant()
    def no_scope_goes_back(self) -> None:
        for scope_id, order in self.node.shown().items():
            assert order >= self.newest.get(scope_id, order)
            self.newest[scope_id] = order

    def teardown(self) -> None:
        """On a quiet bus, the node shows what the active node has, after a few heartbeats and one report."""
        for _ in range(4):
            self.now += 0.25
            self.node.receive(self.stream.heartbeat(), self.now)
            self.node.receive(self.stream.position, self.now)
            self.node.do(self.node.follower.on_tick(self.now))
            serve_requests(self.node, self.stream, self.now)
        for _ in range(30):  # parts of a state that nobody answers any more are given up after five seconds
            self.now += 0.25
            self.node.do(self.node.follower.on_tick(self.now))
            serve_requests(self.node, self.stream, self.now)
        assert not self.node.follower.is_joining
        assert self.node.follower.position == self.stream.position
        expected = {scope.update.scope_id: scope for scope in self.stream.scopes.values()}
        assert self.node.facts.scopes == expected

    def _versions(self) -> dict[str, int]:
        return dict(self.stream.versions)


TestFollowingAnyBus = FollowingAnyBus.TestCase
TestFollowingAnyBus.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
