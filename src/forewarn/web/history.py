"""History handlers: list entries, wait for new ones (long poll), and prune old ones."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.limits import Number
from forewarn.errors import Rejected
from forewarn.store.interface import AppliedCommit
from forewarn.web.context import RequestContext
from forewarn.web.queries import HistoryEntriesQuery, HistoryFilter, history_filter, read_history
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import HistoryEntryView, HistoryPruneView, HistoryView

_MIN_RETENTION_S = 86400  # spec §5.2: past events are kept at least this long
_SCAN_LIMIT = 20_000  # entries read for one page of a caller who may not see all of them


class PruneHistoryBody(StrictBody, frozen=True, kw_only=True):
    """Which history entries to delete: those that are older than this, in lab time."""

    older_than_s: Number  # seconds of lab time; 86400 (a day) or more


async def list_history(context: RequestContext, call: HandlerCall, query: HistoryEntriesQuery) -> HistoryView:
    """List history entries: the newest, or those after a sequence number; `wait_s` waits for a new one."""
    entry_filter = history_filter(context, query)
    page = _read_page(context, query, entry_filter)
    return await _wait_for_page(context, query, entry_filter, page) if query.wait_s and not page.entries else page


def _read_page(context: RequestContext, query: HistoryEntriesQuery, entry_filter: HistoryFilter) -> HistoryView:
    """With `after` the oldest entries since then, so that a follower misses none; else the newest."""
    seq = context.store.last_seq()
    if not context.can_see_everything() and not entry_filter.fields:
        return _read_visible_page(context, query, seq)
    if query.after is None:
        limit = query.limit if context.can_see_everything() else max(query.limit, _SCAN_LIMIT)
        return _history_view(read_history(context, entry_filter, limit=limit)[-query.limit :], seq)
    # The limit must not cut off visible entries behind invisible ones, so it covers all numbers since `after`.
    limit = query.limit + 1 if context.can_see_everything() else max(seq - query.after, query.limit)
    entries = read_history(context, entry_filter, after=query.after, limit=limit, newest=False)
    return _limited_view(entries, query.limit, seq)


def _read_visible_page(context: RequestContext, query: HistoryEntriesQuery, seq: int) -> HistoryView:
    """A page for a caller who may not see all: its `seq` covers the invisible entries that were scanned."""
    if query.after is None:
        newest = context.store.history(limit=_SCAN_LIMIT)
        return _history_view(context.visibility.visible_entries(newest)[-query.limit :], seq)
    found = context.store.entries_after(query.after, _SCAN_LIMIT)
    last = found[-1].seq if len(found) == _SCAN_LIMIT else seq
    return _limited_view(context.visibility.visible_entries(found), query.limit, last)


def _limited_view(entries: list[HistoryEntry], limit: int, seq: int) -> HistoryView:
    return _history_view(entries[:limit], entries[limit - 1].seq if len(entries) > limit else seq)


def _history_view(entries: list[HistoryEntry], seq: int) -> HistoryView:
    last = max(seq, entries[-1].seq) if entries else seq
    return HistoryView(entries=tuple(HistoryEntryView.from_entry(entry) for entry in entries), seq=last)


async def _wait_for_page(
    context: RequestContext, query: HistoryEntriesQuery, entry_filter: HistoryFilter, page: HistoryView
) -> HistoryView:
    """Waits for a visible entry, for at most `wait_s` of real time (spec §12), or until the service stops."""
    new_entries = asyncio.Event()

    def on_commit(committed: AppliedCommit) -> None:
        if committed.commit.entries:
            new_entries.set()

    unsubscribe = context.store.subscribe(on_commit)
    shutting_down = asyncio.create_task(context.dependencies.shutting_down.wait())
    try:
        async with asyncio.timeout(query.wait_s):
            while not page.entries and not context.dependencies.shutting_down.is_set():
                if page.seq < context.store.last_seq():
                    await asyncio.sleep(0)  # many entries to scan: let other tasks run
                else:
                    new_entries.clear()
                    await _wait_for_first(shutting_down, new_entries)
                await context.refresh()
                page = _read_page(context, replace(query, after=page.seq), entry_filter)
    except TimeoutError:
        pass
    finally:
        unsubscribe()
        shutting_down.cancel()
    return page


async def _wait_for_first(shutting_down: asyncio.Task[Any], new_entries: asyncio.Event) -> None:
    waiter = asyncio.create_task(new_entries.wait())
    try:
        await asyncio.wait({shutting_down, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def prune_history(context: RequestContext, call: HandlerCall, body: PruneHistoryBody) -> HistoryPruneView:
    """Delete old history entries."""
    if not body.older_than_s >= _MIN_RETENTION_S:
        raise Rejected(
            f"entries older than {duration_text(body.older_than_s)} cannot be pruned, since the last "
            f"{duration_text(_MIN_RETENTION_S)} are kept: give {_MIN_RETENTION_S} s or more"
        )
    pruned = await context.store.prune(context.now() - body.older_than_s)
    await context.record_history(
        EntryKind.UPKEEP, f"{pruned} history entries older than {duration_text(body.older_than_s)} pruned"
    )
    return HistoryPruneView(pruned=pruned)
