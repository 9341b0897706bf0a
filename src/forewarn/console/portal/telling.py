"""What one visitor is told, as parts of a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from forewarn.console.portal.channel import Channel
from forewarn.console.portal.listener import Waiting
from forewarn.console.portal.news import News
from forewarn.console.portal.vigil import Scopes
from forewarn.console.room import Room

KEPT_ALIVE = b"event: alive\ndata: {}\n\n"  # a script cannot hear comments, and is to notice when nothing comes
OVER = b'event: over\ndata: {"text":"You are signed out."}\n\n'


class Telling:
    def __init__(self, room: Room, channel: Channel) -> None:
        self._room = room
        self._channel = channel

    def greeting(self, after: int | None, age_s: float | None = None) -> bytes:
        """How things are, and what a page that has seen everything up to `after` was not told, nor, since it is so
        old, of those who ask.
        """
        known = self._room.store.last_seq() if after is None else after
        missed = self._channel.missed_since(known)
        resumed = self.reset() if missed is None else self._change(missed)
        asking = frozenset() if age_s is None else self._channel.asking_changed(age_s)
        return b"".join([self._clock(), self._health(), resumed, self._asking(asking), self._counts()])

    def waiting(self, waiting: Waiting) -> bytes:
        return b"".join(self._parts(waiting))

    def _parts(self, waiting: Waiting) -> Iterator[bytes]:
        if waiting.is_lost:
            yield self.reset()
        yield from map(self._change, waiting.news)
        yield self._asking(waiting.asking)
        if waiting.wants_clock:
            yield self._clock()
        if waiting.wants_counts:
            yield self._counts()
        if waiting.wants_health:
            yield self._health()

    def reset(self) -> bytes:
        """Everything has to be read again; what comes after is told as ever."""
        return _part("reset", {}, seq=self._room.store.last_seq())

    def _change(self, news: News) -> bytes:
        if self._room.sees_everything():
            return b"" if news.whole.is_empty else _framed("change", news.whole_json, seq=news.seq)
        seen = news.seen_by(self._room.visible, self._room.store)
        return b"" if seen.is_empty else _part("change", seen, seq=seen.seq)

    def _asking(self, scopes: Scopes) -> bytes:
        """Without a number: the history does not tell who asks."""
        if scopes is not None and not self._room.sees_everything():
            scopes = frozenset(filter(self._room.sees_scope, scopes))
        if scopes is not None and not scopes:
            return b""
        return _part("asking", {"now": self._room.now(), "scopes": None if scopes is None else sorted(scopes)})

    def _clock(self) -> bytes:
        now, speed, lab = self._room.control.labtime.show()
        return _part("clock", {"now": now, "speed": speed, "lab": lab})

    def _counts(self) -> bytes:
        return _framed("counts", self._channel.counts(self._room.directory))

    def _health(self) -> bytes:
        return _part("health", self._channel.health)


def _part(event: str, data: Any, *, seq: int | None = None) -> bytes:
    return _framed(event, msgspec.json.encode(data), seq=seq)


def _framed(event: str, data: bytes, *, seq: int | None = None) -> bytes:
    number = b"" if seq is None else b"id: %d\n" % seq
    return b"%sevent: %s\ndata: %s\n\n" % (number, event.encode(), data)
