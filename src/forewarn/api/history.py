"""Calls about the record: read it, follow it, prune it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from forewarn.console.body import HistoryQuery, Pruning
from forewarn.console.call import Call
from forewarn.console.event import lists
from forewarn.console.room import Room
from forewarn.console.views import EntryView, HistoryView, PrunedView
from forewarn.core.history import Entry, What
from forewarn.core.story import span
from forewarn.errors import Rejected
from forewarn.store.seam import Committed

_DAY_S = 86400  # spec §5.2: events that are over are kept this long at least
_MOST_EVENTS = 100  # of a VM's life, the newest
_LOOKED_THROUGH = 20_000  # entries, for a page of somebody who may not see all of them


async def show(room: Room, call: Call, query: HistoryQuery) -> HistoryView:
    """Entries of the history: the newest ones, or those after a number, waiting for one if asked to."""
    wanted = wanted_by(room, query)
    page = _page(room, query, wanted)
    return await _next_page(room, query, wanted, page) if query.wait_s and not page.entries else page


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which entries are meant."""

    like: dict[str, Any]  # what they have in common
    shared: tuple[str, ...] = ()  # events of several VMs, one of which is meant: their entries name none


def wanted_by(room: Room, query: HistoryQuery) -> Wanted:
    like: dict[str, Any] = {}
    if query.scope:
        like["scope_id"] = room.scope(query.scope).id
    if query.event:
        like["event_id"] = room.event(query.event).id
    if query.request:
        like["request_id"] = room.request(query.request).id
    if not query.vm:
        return Wanted(like=like)
    vm = room.directory.find_any(query.vm)
    shared = [e.id for e in room.store.events(scope_id=vm.scope_id) if len(e.vms) > 1 and lists(e, vm.name)]
    return Wanted(like={**like, "vm": vm.name}, shared=tuple(shared[-_MOST_EVENTS:]))


def read(
    room: Room, wanted: Wanted, *, after: int = 0, before: int | None = None, limit: int, newest: bool = True
) -> list[Entry]:
    """Oldest first: the newest ones within these bounds, or else the oldest."""
    bounds: dict[str, Any] = {"after": after, "before": before, "limit": limit, "newest": newest}
    found = room.store.history(**bounds, **wanted.like)
    for event_id in wanted.shared:
        if wanted.like.get("event_id", event_id) == event_id:
            found += room.store.history(**bounds, **{**wanted.like, "event_id": event_id, "vm": ""})
    seen = sorted((entry for entry in found if room.visible.entry(entry)), key=lambda entry: entry.seq)
    return seen[-limit:] if newest else seen[:limit]


def _page(room: Room, query: HistoryQuery, wanted: Wanted) -> HistoryView:
    """With `after` the oldest ones since, so that whoever follows misses none; else the newest ones."""
    seq = room.store.last_seq()
    if not room.sees_everything() and not wanted.like:
        return _page_of_some(room, query, seq)
    if query.after is None:
        return _shown(read(room, wanted, limit=query.limit), seq)
    # Of what not all can be seen no more can have been written than there are numbers since.
    most = query.limit + 1 if room.sees_everything() else max(seq - query.after, query.limit)
    entries = read(room, wanted, after=query.after, limit=most, newest=False)
    return _cut(entries, query.limit, seq)


def _page_of_some(room: Room, query: HistoryQuery, seq: int) -> HistoryView:
    """For who may not see all: whatever was looked through counts as read, so that the next page goes on there."""
    if query.after is None:
        newest = room.store.history(limit=_LOOKED_THROUGH)
        return _shown([entry for entry in newest if room.visible.entry(entry)][-query.limit :], seq)
    found = room.store.entries_after(query.after, _LOOKED_THROUGH)
    last = found[-1].seq if len(found) == _LOOKED_THROUGH else seq
    return _cut([entry for entry in found if room.visible.entry(entry)], query.limit, last)


def _cut(entries: list[Entry], limit: int, seq: int) -> HistoryView:
    return _shown(entries[:limit], entries[limit - 1].seq if len(entries) > limit else seq)


def _shown(entries: list[Entry], seq: int) -> HistoryView:
    last = max(seq, entries[-1].seq) if entries else seq
    return HistoryView(entries=tuple(EntryView.of(entry) for entry in entries), seq=last)


async def _next_page(room: Room, query: HistoryQuery, wanted: Wanted, page: HistoryView) -> HistoryView:
    """Until there is something to show, the time is over (real time, spec §12), or the service stops.

    What was looked at and is nothing for the caller is not looked at again.
    """
    news = asyncio.Event()

    def hear(committed: Committed) -> None:
        if committed.commit.entries:
            news.set()

    stop = room.store.subscribe(hear)
    closing = asyncio.create_task(room.house.closing.wait())
    try:
        async with asyncio.timeout(query.wait_s):
            while not page.entries and not room.house.closing.is_set():
                if page.seq < room.store.last_seq():
                    await asyncio.sleep(0)  # much to look through: others get their turn
                else:
                    news.clear()
                    await _first_of(closing, news)
                await room.look_again()
                page = _page(room, replace(query, after=page.seq), wanted)
    except TimeoutError:
        pass
    finally:
        stop()
        closing.cancel()
    return page


async def _first_of(closing: asyncio.Task[Any], news: asyncio.Event) -> None:
    waiter = asyncio.create_task(news.wait())
    try:
        await asyncio.wait({closing, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def prune(room: Room, call: Call, asked: Pruning) -> PrunedView:
    """Remove old entries of the history."""
    if not asked.older_than_s >= _DAY_S:
        raise Rejected(
            f"history of the last {_DAY_S} s is kept, so what is older than {asked.older_than_s:g} s cannot be pruned: "
            f"give {_DAY_S} s or more"
        )
    pruned = await room.store.prune(room.now() - asked.older_than_s)
    await room.note(What.UPKEEP, f"{pruned} entries of the history older than {span(asked.older_than_s)} pruned")
    return PrunedView(pruned=pruned)
