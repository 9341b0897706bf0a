"""The history, a page at a time, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from forewarn.console.body import HistoryQuery as ApiHistoryQuery
from forewarn.console.body import Number, Strict
from forewarn.console.call import Call
from forewarn.console.history import Wanted, read, wanted_by
from forewarn.console.portal.axis import iso
from forewarn.console.portal.page import MOST_TAKEN, Table, cut_note
from forewarn.console.room import Room
from forewarn.console.views import EntryView, View
from forewarn.core.fleet import key_in_scope
from forewarn.core.history import Entry, What

_LOOKED_THROUGH = 20_000  # entries, for a page of somebody who may not see all of them
_AT_A_STRETCH = 500  # of them; then others get their turn
_MOST_ON_A_PAGE = 1000

_BY_SOMEBODY = frozenset(
    {
        What.REQUESTED,
        What.APPROVED,
        What.WITHDRAWN,
        What.PAUSED,
        What.RESUMED,
        What.STOPPED,
        What.FLEET,
        What.HOST,
        What.CLOCK,
        What.FAULT,
        What.WEBHOOK,
    }
)


class HistoryQuery(Strict, frozen=True, kw_only=True):
    vm: str = ""
    event: str = ""
    request: str = ""
    scope: str = ""
    after: Number | None = None  # the oldest ones after this entry
    before: Number | None = None  # the newest ones before it
    limit: Annotated[int, Meta(ge=1, le=_MOST_ON_A_PAGE)] = 100


class HistoryPage(View, frozen=True, kw_only=True):
    now: float
    entries: tuple[EntryView, ...]  # newest first
    older: int | None  # there are some before this number
    newer: int | None  # there are some after this number
    is_cut: bool  # a file that does not hold everything
    topic: str  # what the page is about, for those who keep it up to date; "": it shows the past

    def table(self) -> Table:
        note = cut_note(self.is_cut, len(self.entries))
        return Table(columns=EntryView.__struct_fields__, rows=[_row(entry) for entry in self.entries], note=note)

    def teller_of(self, entry: EntryView) -> str:
        """Who did it, where that is not obvious."""
        return entry.who if entry.what in _BY_SOMEBODY and entry.who not in entry.text else ""

    def path_of_vm(self, entry: EntryView) -> str:
        """Names alone may mean VMs of several groups."""
        return f"/portal/vms/{key_in_scope(entry.scope_id, entry.vm) if entry.scope_id else entry.vm}"


async def show(room: Room, call: Call, query: HistoryQuery) -> HistoryPage:
    """What happened, newest first."""
    sieve = ApiHistoryQuery(vm=query.vm, event=query.event, request=query.request, scope=query.scope)
    wanted = wanted_by(room, sieve)
    if call.whole:
        return await _everything(room, wanted)
    forwards = query.after is not None and query.before is None
    page = await _page(_reader(room, wanted, forwards), query, forwards)
    follows = query.after is None and query.before is None
    return replace(page, now=room.now(), topic=_topic(room, query) if follows else "")


# From numbers after and before, and how many: those that may be seen and, if there may be others, where to go on.
_Reader = Callable[[int, int | None, int], Awaitable[tuple[list[Entry], int | None]]]


def _reader(room: Room, wanted: Wanted, forwards: bool) -> _Reader:
    async def read_all(after: int, before: int | None, most: int) -> tuple[list[Entry], int | None]:
        return read(room, wanted, after=after, before=before, limit=most, newest=not forwards), None

    async def read_some(after: int, before: int | None, most: int) -> tuple[list[Entry], int | None]:
        found: list[Entry] = []
        for _ in range(0, _LOOKED_THROUGH, _AT_A_STRETCH):
            stretch = room.store.history(after=after, before=before, limit=_AT_A_STRETCH, newest=not forwards)
            seen = [entry for entry in stretch if room.visible.entry(entry)]
            found = [*found, *seen] if forwards else [*seen, *found]
            if len(stretch) < _AT_A_STRETCH:
                return found, None
            after, before = (stretch[-1].seq, before) if forwards else (after, stretch[0].seq)
            if len(found) >= most:
                break
            await asyncio.sleep(0)
        return found, after if forwards else before

    return read_all if room.sees_everything() or wanted.like else read_some


async def _page(read_entries: _Reader, query: HistoryQuery, forwards: bool) -> HistoryPage:
    found, goes_on_at = await read_entries(query.after or 0, query.before, query.limit + 1)
    shown = found[: query.limit] if forwards else found[-query.limit :]
    first, last = (shown[0].seq, shown[-1].seq) if shown else (None, None)
    is_more = len(found) > query.limit
    older = first if is_more else goes_on_at
    newer = None if query.before is None else last or query.before - 1
    if forwards:
        older, newer = first or (query.after or 0) + 1, last if is_more else goes_on_at
    return HistoryPage(
        now=0.0,
        entries=tuple(EntryView.of(entry) for entry in reversed(shown)),
        older=older,
        newer=newer,
        is_cut=False,
        topic="",
    )


async def _everything(room: Room, wanted: Wanted) -> HistoryPage:
    """As far as a file holds it, page by page, so that nobody else waits."""
    read_entries = _reader(room, wanted, forwards=False)
    found: list[EntryView] = []
    older: int | None = None
    for _ in range(0, MOST_TAKEN, _MOST_ON_A_PAGE):
        page = await _page(read_entries, HistoryQuery(before=older, limit=_MOST_ON_A_PAGE), forwards=False)
        found += page.entries
        older = page.older
        if older is None:
            break
        await asyncio.sleep(0)
    return HistoryPage(
        now=room.now(), entries=tuple(found), older=older, newer=None, is_cut=older is not None, topic=""
    )


def _topic(room: Room, query: HistoryQuery) -> str:
    if query.event:
        return f"event:{room.event(query.event).id}"
    if query.request:
        return f"request:{room.request(query.request).id}"
    if query.vm:
        return f"vm:{room.directory.find_any(query.vm).key}"
    return f"scope:{room.scope(query.scope).id}" if query.scope else "all"


def _row(entry: EntryView) -> list[object]:
    facts = {name: getattr(entry, name) for name in EntryView.__struct_fields__}
    return list((facts | {"at": iso(entry.at)}).values())
