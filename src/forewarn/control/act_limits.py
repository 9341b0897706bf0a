"""Limits the attempts at acts that run at the same time, overall and per host and verb.

So a host that hangs does not delay acts on other hosts. An act counts on the host that its VM is on and on the
host it moves to, because a call may hang on either.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from forewarn.core.cause import Verb
from forewarn.core.event import Act

QueuedAct = tuple[float, int, str]  # when the act is due in lab time, its order, its id
_SlotKey = tuple[Verb, str, str]  # verb, host, ""; or of a move: verb, source, destination


@dataclass(frozen=True, slots=True, kw_only=True)
class ActLimits:
    """How many attempts at acts may run at the same time, and when an attempt counts as unanswered."""

    overall: int = 64  # without unanswered attempts: these cost nothing but memory
    per_host: int = 16  # of one verb, unanswered ones included
    per_move: int = 8  # of one verb between the same two hosts, so that a hanging destination leaves the source some
    unanswered_after_s: float = 10.0  # real time


class HostLimiter:
    """Counts the attempts in progress on each host, and keeps the acts that wait for a slot there.

    For each act call `acquire_or_wait` and, if that returned True, `release` and `next_waiting` at the end of the
    attempt.
    """

    def __init__(self, limits: ActLimits) -> None:
        self._limits = limits
        self._running: Counter[_SlotKey] = Counter()
        self._waiting: dict[_SlotKey, deque[QueuedAct]] = {}
        self._awaited: dict[str, _SlotKey] = {}  # id of a waiting act → what it waits for

    @property
    def blocking_hosts(self) -> dict[str, str]:
        """The host that each waiting act waits for, by the id of the act; "" for VMs without a host."""
        return {act_id: key[2] or key[1] for act_id, key in self._awaited.items()}

    def acquire_or_wait(self, act: Act, queued: QueuedAct) -> bool:
        """Take all slots that the act needs and return True; if one is not free, let it wait and return False.

        An act that waits must not be passed a second time before `next_waiting` has yielded it.
        """
        keys = _slot_keys(act)
        blocked = next((key for key in keys if not self._is_free(key)), None)
        if blocked is None:
            self._running.update(keys)
            return True
        self._waiting.setdefault(blocked, deque()).append(queued)
        self._awaited[act.id] = blocked
        return False

    def release(self, act: Act) -> None:
        """Free the slots that `acquire_or_wait` took for an act; that they were taken is not checked."""
        for key in _slot_keys(act):
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def next_waiting(self, act: Act) -> Iterator[QueuedAct]:
        """Remove and yield the act that waited longest for each kind of slot of `act` that has a free one.

        Call it after each `release`, and again with each act that it yielded if that act was not started: otherwise a
        slot could stay free while acts wait for it. Use up the iterator.
        """
        for key in _slot_keys(act):
            if key in self._waiting and self._is_free(key):
                queued = self._waiting[key][0]
                self.remove(queued[2])
                yield queued

    def remove(self, act_id: str) -> None:
        """Remove an act from those that wait for a slot; does nothing if it does not wait."""
        key = self._awaited.pop(act_id, None)
        if key is None:
            return
        waiting = self._waiting[key]
        waiting.remove(next(queued for queued in waiting if queued[2] == act_id))
        if not waiting:
            del self._waiting[key]

    def _is_free(self, key: _SlotKey) -> bool:
        limit = self._limits.per_move if key[2] else self._limits.per_host
        return self._running[key] < limit


def _slot_keys(act: Act) -> list[_SlotKey]:
    hosts = [host for host in dict.fromkeys((act.from_host, act.to_host)) if host] or [""]
    pair = [(act.verb, hosts[0], hosts[1])] if len(hosts) == 2 else []
    return [*pair, *((act.verb, host, "") for host in hosts)]
