"""History handlers: list entries, wait for new ones (long poll), and prune old ones."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.errors import Rejected
from forewarn.explain.phrases import duration_text
from forewarn.store.interface import AppliedCommit
from forewarn.web.context import RequestContext
from forewarn.web.queries import HistoryEntriesQuery, HistoryFilter, history_filter, read_history
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import HistoryEntryView, HistoryPruneView, HistoryView


class PruneHistoryBody(StrictBody, frozen=True, kw_only=True):
    older_than_s: float


_MIN_RETENTION_S = 86400  # spec §5.2: events that are over are kept this long at least
_SCAN_LIMIT = 20_000  # entries, for a page of somebody who may not see all of them


async def list_history(context: RequestContext, call: HandlerCall, query: HistoryEntriesQuery) -> HistoryView:
    """Entries of the history: the newest ones, or those after a number, waiting for one if asked to."""
    entry_filter = history_filter(context, query)
    page = _read_page(context, query, entry_filter)
    return await _wait_for_page(context, query, entry_filter, page) if query.wait_s and not page.entries else page


def _read_page(context: RequestContext, query: HistoryEntriesQuery, entry_filter: HistoryFilter) -> HistoryView:
    """With `after` the oldest ones since, so that whoever follows misses none; else the newest ones."""
    seq = context.store.last_seq()
    if not context.can_see_everything() and not entry_filter.fields:
        return _read_visible_page(context, query, seq)
    if query.after is None:
        return _history_view(read_history(context, entry_filter, limit=query.limit), seq)
    # Of what not all can be seen no more can have been written than there are numbers since.
    most = query.limit + 1 if context.can_see_everything() else max(seq - query.after, query.limit)
    entries = read_history(context, entry_filter, after=query.after, limit=most, newest=False)
    return _limited_view(entries, query.limit, seq)


def _read_visible_page(context: RequestContext, query: HistoryEntriesQuery, seq: int) -> HistoryView:
    """For who may not see all: whatever was looked through counts as read, so that the next page goes on there."""
    if query.after is None:
        newest = context.store.history(limit=_SCAN_LIMIT)
        return _history_view(
            [entry for entry in newest if context.visibility.can_see_entry(entry)][-query.limit :], seq
        )
    found = context.store.entries_after(query.after, _SCAN_LIMIT)
    last = found[-1].seq if len(found) == _SCAN_LIMIT else seq
    return _limited_view([entry for entry in found if context.visibility.can_see_entry(entry)], query.limit, last)


def _limited_view(entries: list[HistoryEntry], limit: int, seq: int) -> HistoryView:
    return _history_view(entries[:limit], entries[limit - 1].seq if len(entries) > limit else seq)


def _history_view(entries: list[HistoryEntry], seq: int) -> HistoryView:
    last = max(seq, entries[-1].seq) if entries else seq
    return HistoryView(entries=tuple(HistoryEntryView.from_entry(entry) for entry in entries), seq=last)


async def _wait_for_page(
    context: RequestContext, query: HistoryEntriesQuery, entry_filter: HistoryFilter, page: HistoryView
) -> HistoryView:
    """Until there is something to show, the time is over (real time, spec §12), or the service stops.

    What was looked at and is nothing for the caller is not looked at again.
    """
    new_entries = asyncio.Event()

    def on_commit(committed: AppliedCommit) -> None:
        if committed.commit.entries:
            new_entries.set()

    stop = context.store.subscribe(on_commit)
    closing = asyncio.create_task(context.dependencies.shutting_down.wait())
    try:
        async with asyncio.timeout(query.wait_s):
            while not page.entries and not context.dependencies.shutting_down.is_set():
                if page.seq < context.store.last_seq():
                    await asyncio.sleep(0)  # much to look through: others get their turn
                else:
                    new_entries.clear()
                    await _wait_for_first(closing, new_entries)
                await context.refresh()
                page = _read_page(context, replace(query, after=page.seq), entry_filter)
    except TimeoutError:
        pass
    finally:
        stop()
        closing.cancel()
    return page


async def _wait_for_first(closing: asyncio.Task[Any], new_entries: asyncio.Event) -> None:
    waiter = asyncio.create_task(new_entries.wait())
    try:
        await asyncio.wait({closing, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def prune_history(context: RequestContext, call: HandlerCall, body: PruneHistoryBody) -> HistoryPruneView:
    """Remove old entries of the history."""
    if not body.older_than_s >= _MIN_RETENTION_S:
        raise Rejected(
            f"history of the last {_MIN_RETENTION_S} s is kept, so what is older than {body.older_than_s:g} s "
            "cannot be pruned: "
            f"give {_MIN_RETENTION_S} s or more"
        )
    pruned = await context.store.prune(context.now() - body.older_than_s)
    await context.record_history(
        EntryKind.UPKEEP, f"{pruned} entries of the history older than {duration_text(body.older_than_s)} pruned"
    )
    return HistoryPruneView(pruned=pruned)
