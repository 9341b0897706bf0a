"""How a host node follows the stream of its host, as a state machine without I/O.

It applies updates in the order of their numbers, and asks for the complete state again after any doubt: a missing
number, a new source, a reconnect, or a stream that has been ahead for a while. Updates that arrive while it waits for
the state follow it. Messages of an older term are ignored: their sender was deposed.

Each method takes the time of a monotonic clock and returns what to do: requests to send, and facts to show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

from forewarn.cluster.bus import RETRY_S
from forewarn.cluster.messages import (
    Heartbeat,
    HostFact,
    HostUpdate,
    JoinAccepted,
    RecordPosition,
    StatePart,
    StreamPosition,
    StreamSource,
)
from forewarn.metadata.workers.messages import BeginServing

_BEHIND_S = 0.9  # how long the stream may be ahead before the state is asked for again: a busy bus is late
_MAX_RETRY_S = 2.0
_PARTS_TIMEOUT_S = 5.0  # without progress; then it joins again
JOIN_REASONS = ("start", "gap", "new source", "behind", "reconnected", "too slow", "not joined")
_MAX_WAITING_UPDATES = 10_000  # while it waits for the state; more are dropped, and it joins again


@dataclass(frozen=True, slots=True)
class SendJoin:
    """What a `StreamFollower` asks for: send a `JoinRequest`, and pass its reply to `on_joined`."""

    reason: str  # one of JOIN_REASONS, for the log


@dataclass(frozen=True, slots=True)
class AskPart:
    """What a `StreamFollower` asks for: send a `StatePartRequest`, and pass its reply to `on_part`."""

    join_id: str  # the id of the state, as in `JoinAccepted`
    index: int  # the index of the part; 0 came with `JoinAccepted`


@dataclass(frozen=True, slots=True)
class InstallState:
    """What a `StreamFollower` asks for: show these facts, and no others, in place of all earlier ones."""

    begin: BeginServing  # how to serve; the same each time, unless the active node's rules have changed
    facts: tuple[HostFact, ...]  # of all parts, in their order


@dataclass(frozen=True, slots=True)
class ApplyFacts:
    """What a `StreamFollower` asks for: show these facts in place of earlier ones of their scope or kind."""

    facts: tuple[HostFact, ...]  # of one update, in its order


FollowerAction: TypeAlias = SendJoin | AskPart | InstallState | ApplyFacts


@dataclass(slots=True)
class _PartialState:
    accepted: JoinAccepted
    parts: dict[int, tuple[HostFact, ...]]
    progress_at: float
    asked_at: float = -math.inf

    @property
    def next_missing(self) -> int | None:
        return next((index for index in range(self.accepted.parts) if index not in self.parts), None)


@dataclass(slots=True)
class StreamFollower:
    """How a host node follows the numbered stream of its host; a state machine without I/O.

    Call `start`, then the other methods as messages arrive, and `on_tick` often; each returns what to do, in order.
    """

    position: StreamPosition | None = None  # what the node shows; None: no complete state has arrived yet
    record: RecordPosition = field(default_factory=RecordPosition)  # which has all that the node shows
    joins: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOIN_REASONS, 0))  # by reason, also 0
    _source: StreamSource | None = None  # the latest that was heard of
    _heard_at: float = -math.inf
    _join_reason: str = ""  # "": it follows the stream
    _join_sent_at: float = -math.inf
    _retry_s: float = RETRY_S  # between requests for the state; grows, so that many nodes do not overload the service
    _state: _PartialState | None = None
    _waiting: dict[int, HostUpdate] = field(default_factory=dict)  # by number, of `_source`
    _behind: tuple[int, float] | None = None  # a number that the stream had reached, and when that was heard

    @property
    def is_joining(self) -> bool:
        """Whether the node waits for a complete state; what it shows may be old. False before `start`."""
        return bool(self._join_reason)

    def silent_s(self, now: float) -> float:
        """Return for how many seconds the active control node was not heard; infinite if never."""
        return now - self._heard_at

    def start(self, now: float) -> list[FollowerAction]:
        """Begin to follow: return the request for the first complete state, to be sent."""
        return self._join("start", now)

    def on_doubt(self, reason: str, now: float) -> list[FollowerAction]:
        """Ask for the complete state again, because messages may have been lost; return what to do."""
        return self._join(reason, now)

    def on_heartbeat(self, heartbeat: Heartbeat, now: float) -> list[FollowerAction]:
        """Note that the active control node is alive; return what to do: join again if it is another process.

        A heartbeat of an older term is ignored ([]). `now` is the time of a monotonic clock.
        """
        if self._is_deposed(heartbeat.source):
            return []
        self._heard_at = now
        # Only if this node has joined its sender: another record must not hide what this node has shown.
        if self.position is not None and self.position.source == heartbeat.source:
            self.note_record(heartbeat.record)
        return self._follow_source(heartbeat.source, now)

    def note_record(self, record: RecordPosition) -> None:
        """Note the commit that has the facts of a message from the process that this node has joined."""
        if record.id != self.record.id or record.number > self.record.number:
            self.record = record

    def on_update(self, update: HostUpdate, now: float) -> list[FollowerAction]:
        """Handle an update of the host's stream; return what to do, in order."""
        source, number = update.position.source, update.position.number
        if self._is_deposed(source):
            return []
        self._heard_at = now
        actions = self._follow_source(source, now)
        if not self.is_joining:
            assert self.position is not None
            if number <= self.position.number:
                return actions
            if number == self.position.number + 1:
                self.position = update.position
                self.note_record(update.record)
                return [*actions, ApplyFacts(update.facts)]
            actions += self._join("gap", now)
        # All of them: with the first ones missing, the rest could not be applied either.
        if len(self._waiting) >= _MAX_WAITING_UPDATES:
            self._waiting.clear()
        self._waiting[number] = update
        return actions

    def on_joined(self, accepted: JoinAccepted, now: float) -> list[FollowerAction]:
        """Handle the reply to a `JoinRequest`; return what to do: show the state, or ask for its next part."""
        source = accepted.position.source
        if self._is_deposed(source):
            return []
        self._heard_at = now
        actions = self._follow_source(source, now)
        # Delayed replies arrive in any order; none may take this node back.
        if not self.is_joining or self._is_older_than_shown(accepted.position):
            return actions
        if self._state is not None and self._state.accepted.position.source == source:
            return actions  # the parts of an earlier reply are on their way
        self._state = _PartialState(accepted, {0: accepted.facts}, progress_at=now)
        return [*actions, *self._continue_state(now)]

    def on_part(self, part: StatePart, now: float) -> list[FollowerAction]:
        """Take over a part of the awaited state; return what to do: ask for the next part, or show the state."""
        state = self._state
        if state is None or part.join_id != state.accepted.join_id or part.index in state.parts:
            return []
        state.parts[part.index] = part.facts
        # Progress: ask for the next part at once, without the pause between repetitions.
        state.progress_at, state.asked_at = now, -math.inf
        return self._continue_state(now)

    def on_state_gone(self, join_id: str, now: float) -> list[FollowerAction]:
        """Give up the awaited state, whose parts the active node no longer has; return the new request."""
        if self._state is None or self._state.accepted.join_id != join_id:
            return []
        self._state = None
        self._join_sent_at = -math.inf
        return self.on_tick(now)

    def on_join_denied(self) -> None:
        """Shorten the pause before the join request is repeated, because the active node denied the last one."""
        self._retry_s = RETRY_S

    def on_join_unanswered(self) -> None:
        """Make the next `on_tick` repeat the join request at once, because nobody received it."""
        self._join_sent_at = -math.inf

    def on_position(self, position: StreamPosition, now: float) -> list[FollowerAction]:
        """Compare what is shown with how far the stream is, as the active control node answered a report."""
        # If this node stays behind for about a second, `on_tick` joins again. The answer does not prove that the lease
        # is held, so it does not count as hearing the active node.
        if self._is_deposed(position.source):
            return []
        actions = self._follow_source(position.source, now)
        if self.is_joining or self.position is None or position.number <= self.position.number:
            return actions
        # Keep the oldest number that is missing, or a steady stream would put the doubt off for ever.
        if self._behind is None or self._behind[0] <= self.position.number:
            self._behind = (position.number, now)
        return actions

    def on_tick(self, now: float) -> list[FollowerAction]:
        """Repeat requests that were not answered, and join again if the stream stays ahead; return what to do."""
        if not self.is_joining:
            if self._behind is None or self.position is None:
                return []
            number, since = self._behind
            if self.position.number >= number:
                self._behind = None
            elif now - since >= _BEHIND_S:
                return self._join("behind", now)
            return []
        if self._state is not None:
            if now - self._state.progress_at < _PARTS_TIMEOUT_S:
                return self._continue_state(now)
            self._state = None
        if now - self._join_sent_at < self._retry_s:
            return []
        self._join_sent_at = now
        # Slower and slower: after a takeover all nodes ask at once.
        self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)
        return [SendJoin(self._join_reason)]

    def _is_deposed(self, source: StreamSource) -> bool:
        return self._source is not None and source.term < self._source.term

    def _is_older_than_shown(self, position: StreamPosition) -> bool:
        shown = self.position
        return shown is not None and shown.source == position.source and position.number < shown.number

    def _follow_source(self, source: StreamSource, now: float) -> list[FollowerAction]:
        if source == self._source:
            return []
        is_first = self._source is None
        self._source, self._state, self._behind = source, None, None
        self._waiting.clear()
        if is_first and self.is_joining:
            return []
        self._join_reason = ""  # the new source has not been asked yet
        return self._join("new source", now)

    def _join(self, reason: str, now: float) -> list[FollowerAction]:
        self._behind = None
        self.joins[reason] = self.joins.get(reason, 0) + 1
        if not self.is_joining:
            self._join_reason, self._retry_s = reason, RETRY_S
        # A gap is filled by the state that is on its way; any other doubt makes that state useless.
        elif reason != "gap":
            self._state = None
        # One request is on its way; `on_tick` repeats it.
        if now - self._join_sent_at < RETRY_S:
            return []
        self._join_sent_at = now
        return [SendJoin(self._join_reason)]

    def _continue_state(self, now: float) -> list[FollowerAction]:
        state = self._state
        assert state is not None
        missing = state.next_missing
        if missing is None:
            return self._complete(state, now)
        if now - state.asked_at < RETRY_S:
            return []
        state.asked_at = now
        return [AskPart(state.accepted.join_id, missing)]

    def _complete(self, state: _PartialState, now: float) -> list[FollowerAction]:
        accepted = state.accepted
        facts = tuple(fact for index in range(accepted.parts) for fact in state.parts[index])
        # First the state, then the updates that came after it, in their order.
        self.position, self._state, self._join_reason = accepted.position, None, ""
        self.record = accepted.record  # the active node has proved that it has all that was shown before
        actions: list[FollowerAction] = [InstallState(accepted.begin, facts)]
        waiting, self._waiting = self._waiting, {}
        for number in sorted(waiting):
            if number <= self.position.number:
                continue
            if number != self.position.number + 1:
                self._waiting = {later: waiting[later] for later in waiting if later >= number}
                actions += self._join("gap", now)
                break
            self.position = waiting[number].position
            self.note_record(waiting[number].record)
            actions.append(ApplyFacts(waiting[number].facts))
        return actions
