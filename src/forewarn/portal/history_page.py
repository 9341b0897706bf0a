"""The history page: entries newest first, by sequence number, and the export of all of them.

For users who may not see everything a bounded number of entries is read per page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from forewarn.core.fleet import vm_key_in_scope
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.portal.export import MAX_EXPORT_ROWS, ExportTable, truncation_note
from forewarn.portal.timeline_chart import format_iso
from forewarn.web.context import RequestContext
from forewarn.web.queries import HistoryEntriesQuery as ApiHistoryQuery
from forewarn.web.queries import HistoryFilter, history_filter, read_history
from forewarn.web.request_parsing import HandlerCall, HistorySeq, StrictBody
from forewarn.web.views import BaseView, HistoryEntryView

_MAX_ENTRIES_READ = 20_000  # entries, for a page of somebody who may not see all of them
_BATCH_SIZE = 500  # of them; then others get their turn
_MAX_PAGE_SIZE = 1000

_ENTRIES_WITH_ACTOR = frozenset(
    {
        EntryKind.REQUESTED,
        EntryKind.APPROVED,
        EntryKind.WITHDRAWN,
        EntryKind.PAUSED,
        EntryKind.RESUMED,
        EntryKind.STOPPED,
        EntryKind.FLEET,
        EntryKind.HOST,
        EntryKind.CLOCK,
        EntryKind.FAULT,
        EntryKind.WEBHOOK,
    }
)


class HistoryPageQuery(StrictBody, frozen=True, kw_only=True):
    vm: str = ""
    event: str = ""
    request: str = ""
    scope: str = ""
    after: HistorySeq | None = None  # the oldest ones after this entry
    before: HistorySeq | None = None  # the newest ones before it
    limit: Annotated[int, Meta(ge=1, le=_MAX_PAGE_SIZE)] = 100


class HistoryPage(BaseView, frozen=True, kw_only=True):
    now: float
    entries: tuple[HistoryEntryView, ...]  # newest first
    older: int | None  # there are some before this number
    newer: int | None  # there are some after this number
    is_cut: bool  # a file that does not hold everything
    topic: str  # what the page is about, for those who keep it up to date; "": it shows the past

    def table(self) -> ExportTable:
        note = truncation_note(self.is_cut, len(self.entries))
        return ExportTable(
            columns=HistoryEntryView.__struct_fields__, rows=[_csv_row(entry) for entry in self.entries], note=note
        )

    def actor_of(self, entry: HistoryEntryView) -> str:
        """Who did it, where that is not obvious."""
        return entry.who if entry.what in _ENTRIES_WITH_ACTOR and entry.who not in entry.text else ""

    def vm_url(self, entry: HistoryEntryView) -> str:
        """Names alone may mean VMs of several groups."""
        return f"/portal/vms/{vm_key_in_scope(entry.scope_id, entry.vm) if entry.scope_id else entry.vm}"


async def show_history_page(context: RequestContext, call: HandlerCall, query: HistoryPageQuery) -> HistoryPage:
    """What happened, newest first."""
    sieve = ApiHistoryQuery(vm=query.vm, event=query.event, request=query.request, scope=query.scope)
    wanted = history_filter(context, sieve)
    if call.for_export:
        return await _read_all(context, wanted)
    forwards = query.after is not None and query.before is None
    page = await _read_page(_entry_reader(context, wanted, forwards), query, forwards)
    follows = query.after is None and query.before is None
    return replace(page, now=context.now(), topic=_live_topic(context, query) if follows else "")


# From numbers after and before, and how many: those that may be seen and, if there may be others, where to go on.
_EntryReader = Callable[[int, int | None, int], Awaitable[tuple[list[HistoryEntry], int | None]]]


def _entry_reader(context: RequestContext, wanted: HistoryFilter, forwards: bool) -> _EntryReader:
    async def read_all(after: int, before: int | None, most: int) -> tuple[list[HistoryEntry], int | None]:
        return read_history(context, wanted, after=after, before=before, limit=most, newest=not forwards), None

    async def read_some(after: int, before: int | None, most: int) -> tuple[list[HistoryEntry], int | None]:
        found: list[HistoryEntry] = []
        for _ in range(0, _MAX_ENTRIES_READ, _BATCH_SIZE):
            stretch = context.store.history(after=after, before=before, limit=_BATCH_SIZE, newest=not forwards)
            seen = [entry for entry in stretch if context.visibility.can_see_entry(entry)]
            found = [*found, *seen] if forwards else [*seen, *found]
            if len(stretch) < _BATCH_SIZE:
                return found, None
            after, before = (stretch[-1].seq, before) if forwards else (after, stretch[0].seq)
            if len(found) >= most:
                break
            await asyncio.sleep(0)
        return found, after if forwards else before

    return read_all if context.can_see_everything() or wanted.fields else read_some


async def _read_page(read_entries: _EntryReader, query: HistoryPageQuery, forwards: bool) -> HistoryPage:
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
        entries=tuple(HistoryEntryView.from_entry(entry) for entry in reversed(shown)),
        older=older,
        newer=newer,
        is_cut=False,
        topic="",
    )


async def _read_all(context: RequestContext, wanted: HistoryFilter) -> HistoryPage:
    """As far as a file holds it, page by page, so that nobody else waits."""
    read_entries = _entry_reader(context, wanted, forwards=False)
    found: list[HistoryEntryView] = []
    older: int | None = None
    for _ in range(0, MAX_EXPORT_ROWS, _MAX_PAGE_SIZE):
        page = await _read_page(read_entries, HistoryPageQuery(before=older, limit=_MAX_PAGE_SIZE), forwards=False)
        found += page.entries
        older = page.older
        if older is None:
            break
        await asyncio.sleep(0)
    return HistoryPage(
        now=context.now(), entries=tuple(found), older=older, newer=None, is_cut=older is not None, topic=""
    )


def _live_topic(context: RequestContext, query: HistoryPageQuery) -> str:
    if query.event:
        return f"event:{context.find_event(query.event).id}"
    if query.request:
        return f"request:{context.find_request(query.request).id}"
    if query.vm:
        return f"vm:{context.directory.find_any(query.vm).key}"
    return f"scope:{context.find_scope(query.scope).id}" if query.scope else "all"


def _csv_row(entry: HistoryEntryView) -> list[object]:
    facts = {name: getattr(entry, name) for name in HistoryEntryView.__struct_fields__}
    return list((facts | {"at": format_iso(entry.at)}).values())
