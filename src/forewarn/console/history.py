"""Calls about the record: read it, follow it, prune it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from forewarn.console import body
from forewarn.console.call import Call
from forewarn.console.event import lists
from forewarn.console.room import Room
from forewarn.console.views import EntryView, HistoryView, PrunedView
from forewarn.core.history import Entry
from forewarn.errors import Rejected
from forewarn.store.seam import Committed

_DAY_S = 86400  # spec §5.2: events that are over are kept this long at least
_MOST_EVENTS = 100  # of a VM's life, the newest


async def show(room: Room, call: Call, query: body.HistoryQuery) -> HistoryView:
    """Entries of the history: the newest ones, or those after a number, waiting for one if asked to."""
    wanted = _wanted(room, query)
    if query.wait_s:
        await _until_newer(room, query, wanted)
    return _page(room, query, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which entries are meant."""

    like: dict[str, Any]  # what they have in common
    shared: tuple[str, ...] = ()  # events of several VMs, one of which is meant: their entries name none


def _wanted(room: Room, query: body.HistoryQuery) -> _Wanted:
    like: dict[str, Any] = {}
    if query.scope:
        like["scope_id"] = room.scope(query.scope).id
    if query.event:
        like["event_id"] = room.event(query.event).id
    if query.request:
        like["request_id"] = room.request(query.request).id
    if not query.vm:
        return _Wanted(like=like)
    vm = room.directory.find_any(query.vm)
    shared = [e.id for e in room.store.events(scope_id=vm.scope_id) if len(e.vms) > 1 and lists(e, vm.name)]
    return _Wanted(like={**like, "vm": vm.name}, shared=tuple(shared[-_MOST_EVENTS:]))


def _read(room: Room, wanted: _Wanted, after: int, limit: int) -> list[Entry]:
    found = room.store.history(after=after, limit=limit, **wanted.like)
    for event_id in wanted.shared:
        if wanted.like.get("event_id", event_id) == event_id:
            alike = {**wanted.like, "event_id": event_id, "vm": ""}
            found += room.store.history(after=after, limit=limit, **alike)
    return sorted(found, key=lambda entry: entry.seq)[-limit:] if wanted.shared else found


def _page(room: Room, query: body.HistoryQuery, wanted: _Wanted) -> HistoryView:
    """With `after` the oldest ones since, so that whoever follows misses none; else the newest ones."""
    seq = room.store.last_seq()
    if query.after is None:
        entries = _read(room, wanted, 0, query.limit)
    else:
        # No more can have been written than there are numbers since.
        entries = _read(room, wanted, query.after, max(seq - query.after, query.limit))
        if len(entries) > query.limit:
            entries = entries[: query.limit]
            seq = entries[-1].seq
    last = max(seq, entries[-1].seq) if entries else seq
    return HistoryView(entries=tuple(EntryView.of(entry) for entry in entries), seq=last)


async def _until_newer(room: Room, query: body.HistoryQuery, wanted: _Wanted) -> None:
    """Until there is something to show, the time is over (real time, spec §12), or the service stops."""
    news = asyncio.Event()

    def hear(committed: Committed) -> None:
        if committed.commit.entries:
            news.set()

    stop = room.store.subscribe(hear)
    closing = asyncio.create_task(room.house.closing.wait())
    try:
        async with asyncio.timeout(query.wait_s):
            while not room.house.closing.is_set() and not _has_newer(room, query, wanted):
                news.clear()
                await _first_of(closing, news)
    except TimeoutError:
        pass
    finally:
        stop()
        closing.cancel()


def _has_newer(room: Room, query: body.HistoryQuery, wanted: _Wanted) -> bool:
    return bool(_read(room, wanted, query.after or 0, 1))


async def _first_of(closing: asyncio.Task[Any], news: asyncio.Event) -> None:
    waiter = asyncio.create_task(news.wait())
    try:
        await asyncio.wait({closing, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def prune(room: Room, call: Call, asked: body.Pruning) -> PrunedView:
    """Remove old entries of the history."""
    if not asked.older_than_s >= _DAY_S:
        raise Rejected(
            f"history of the last {_DAY_S} s is kept, so what is older than {asked.older_than_s:g} s cannot be pruned: "
            f"give {_DAY_S} s or more"
        )
    return PrunedView(pruned=await room.store.prune(room.now() - asked.older_than_s))
