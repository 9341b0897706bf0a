"""The history page: entries newest first, by sequence number, and the export of all of them.

For users who may not see everything a bounded number of entries is read per page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.fleet import vm_key_in_scope
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.limits import HistorySeq
from forewarn.protocol.dates import iso_date
from forewarn.web.context import RequestContext
from forewarn.web.portal.context import PORTAL_PREFIX, PortalContext
from forewarn.web.portal.export import MAX_EXPORT_ROWS, ExportTable, truncation_note
from forewarn.web.portal.filters import offer_scopes, offer_vms, resolve
from forewarn.web.queries import HistoryEntriesQuery as ApiHistoryQuery
from forewarn.web.queries import HistoryFilter, history_filter, matching_entries, read_history
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView, HistoryEntryView

_MAX_ENTRIES_READ = 20_000  # per page, for users who may not see all of them
_BATCH_SIZE = 500  # entries read before other tasks run
_MAX_PAGE_SIZE = 1000

# Kinds of entries whose actor the page shows.
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
        EntryKind.BUDGET,
        EntryKind.STANDING_ORDER,
    }
)


class HistoryPageQuery(StrictBody, frozen=True, kw_only=True):
    """The query of the history page: entries that match all of `vm`, `event`, `request` and `scope`."""

    vm: str = ""  # a name, `group/name` or key, also of a removed VM; "": any, as in the next three
    event: str = ""  # an id or its beginning, of four characters or more
    request: str = ""  # a full id
    scope: str = ""  # a name or id
    after: HistorySeq | None = None  # shows the oldest entries after this one; with `before`, the newest between them
    before: HistorySeq | None = None  # shows the newest entries before this one
    limit: Annotated[int, Meta(ge=1, le=_MAX_PAGE_SIZE)] = 100  # entries on the page, up to 1,000


class HistoryPage(BaseView, frozen=True, kw_only=True):
    """One page of the history. Field names are JSON keys."""

    now: Timestamp
    entries: tuple[HistoryEntryView, ...]  # newest first
    older: int | None  # `before` of a link to older entries; None: there are none; never None with `after` alone
    newer: int | None  # `after` of a link to newer entries; None: there are none; never None if the query has `before`
    is_partial: bool  # this export does not hold all entries
    topic: str  # what the page follows live, such as `event:ID` or `all`; "": it shows the past, which does not change

    def table(self) -> ExportTable:
        """Return the CSV export: one row per entry of `entries`, newest first."""
        note = truncation_note(self.is_partial, len(self.entries))
        return ExportTable(
            columns=HistoryEntryView.__struct_fields__, rows=[_csv_row(entry) for entry in self.entries], note=note
        )

    def actor_of(self, entry: HistoryEntryView) -> str:
        """Return who caused an entry, by name, as the page shows it beside the text."""
        return entry.actor if entry.kind in _ENTRIES_WITH_ACTOR and entry.actor not in entry.text else ""

    def vm_url(self, entry: HistoryEntryView) -> str:
        """Return the path of the page of an entry's VM, by key if the entry has a scope, else by name."""
        return vm_entry_url(entry)


def vm_entry_url(entry: HistoryEntryView) -> str:
    """Return the path of the page of an entry's VM, by key if the entry has a scope, else by name."""
    return f"{PORTAL_PREFIX}/vms/{vm_key_in_scope(entry.scope_id, entry.vm) if entry.scope_id else entry.vm}"


async def show_history_page(context: PortalContext, call: HandlerCall, query: HistoryPageQuery) -> HistoryPage:
    """Show one page of the history entries that the user may see and that match, newest first."""
    resolve("vm", query.vm, context.directory.find_any, partial(offer_vms, context))
    resolve("scope", query.scope, context.find_scope, partial(offer_scopes, context))
    resolve("event", query.event, context.find_event)
    resolve("request", query.request, context.find_request)
    api_query = ApiHistoryQuery(vm=query.vm, event=query.event, request=query.request, scope=query.scope)
    entry_filter = history_filter(context, api_query)
    if call.for_export:
        return await _read_all(context, entry_filter)
    oldest_first = query.after is not None and query.before is None
    page = await _read_page(_entry_reader(context, entry_filter, oldest_first), query, oldest_first)
    follows = query.after is None and query.before is None
    return replace(page, now=context.now(), topic=_live_topic(context, query) if follows else "")


# Takes after, before and limit. Returns visible entries, oldest first, and the number at which to continue the search;
# None: there are no more.
_EntryReader = Callable[[int, int | None, int], Awaitable[tuple[list[HistoryEntry], int | None]]]


def _entry_reader(context: RequestContext, entry_filter: HistoryFilter, oldest_first: bool) -> _EntryReader:
    async def read_all(after: int, before: int | None, limit: int) -> tuple[list[HistoryEntry], int | None]:
        return read_history(
            context, entry_filter, after=after, before=before, limit=limit, newest=not oldest_first
        ), None

    async def read_some(after: int, before: int | None, limit: int) -> tuple[list[HistoryEntry], int | None]:
        found: list[HistoryEntry] = []
        for _ in range(0, _MAX_ENTRIES_READ, _BATCH_SIZE):
            batch = matching_entries(
                context, entry_filter, after=after, before=before, limit=_BATCH_SIZE, newest=not oldest_first
            )
            visible = context.visibility.visible_entries(batch)
            found = [*found, *visible] if oldest_first else [*visible, *found]
            if len(batch) < _BATCH_SIZE:
                return found, None
            after, before = (batch[-1].seq, before) if oldest_first else (after, batch[0].seq)
            if len(found) >= limit:
                break
            await asyncio.sleep(0)
        return found, after if oldest_first else before

    return read_all if context.can_see_everything() else read_some


async def _read_page(read_entries: _EntryReader, query: HistoryPageQuery, oldest_first: bool) -> HistoryPage:
    found, continues_at = await read_entries(query.after or 0, query.before, query.limit + 1)
    shown = found[: query.limit] if oldest_first else found[-query.limit :]
    first, last = (shown[0].seq, shown[-1].seq) if shown else (None, None)
    is_more = len(found) > query.limit
    older = first if is_more else continues_at
    newer = None if query.before is None else last or query.before - 1
    if oldest_first:
        older, newer = first or (query.after or 0) + 1, last if is_more else continues_at
    return HistoryPage(
        now=timestamp(0.0),
        entries=tuple(HistoryEntryView.from_entry(entry) for entry in reversed(shown)),
        older=older,
        newer=newer,
        is_partial=False,
        topic="",
    )


async def _read_all(context: RequestContext, entry_filter: HistoryFilter) -> HistoryPage:
    """All entries up to the limit of an export, read page by page so that other tasks can run."""
    read_entries = _entry_reader(context, entry_filter, oldest_first=False)
    found: list[HistoryEntryView] = []
    older: int | None = None
    for _ in range(0, MAX_EXPORT_ROWS, _MAX_PAGE_SIZE):
        page = await _read_page(read_entries, HistoryPageQuery(before=older, limit=_MAX_PAGE_SIZE), oldest_first=False)
        found += page.entries
        older = page.older
        if older is None:
            break
        await asyncio.sleep(0)
    return HistoryPage(
        now=timestamp(context.now()),
        entries=tuple(found),
        older=older,
        newer=None,
        is_partial=older is not None,
        topic="",
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
    return list((facts | {"at": iso_date(entry.at)}).values())
