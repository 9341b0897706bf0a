"""Reads that the surfaces share: the events of a host or VM, and filtered entries of the history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from forewarn.core.event import Event
from forewarn.core.history import HistoryEntry
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HistorySeq, ResultLimit, StrictBody

MAX_WAIT_S = 60.0


class HistoryEntriesQuery(StrictBody, frozen=True, kw_only=True):
    after: HistorySeq | None = None  # left out: the newest entries
    vm: str = ""
    event: str = ""
    request: str = ""
    scope: str = ""
    limit: ResultLimit = 1000
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0


def events_on_host(context: RequestContext, host: str, events: Iterable[Event]) -> list[Event]:
    """Those whose work is on this host, and those that hit a VM that is on it now."""
    there = {(vm.scope_id, vm.name.casefold()) for vm in context.store.vms(host=host)}
    return [e for e in events if e.host == host or any((e.scope_id, name.casefold()) in there for name in e.vms)]


def event_lists_vm(event: Event, name: str) -> bool:
    wanted = name.casefold()
    return any(vm.casefold() == wanted for vm in event.vms)


_MAX_SHARED_EVENTS = 100  # of a VM's life, the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Which entries are meant."""

    fields: dict[str, Any]  # what they have in common
    shared_event_ids: tuple[str, ...] = ()  # events of several VMs, one of which is meant: their entries name none


def history_filter(context: RequestContext, query: HistoryEntriesQuery) -> HistoryFilter:
    like: dict[str, Any] = {}
    if query.scope:
        like["scope_id"] = context.find_scope(query.scope).id
    if query.event:
        like["event_id"] = context.find_event(query.event).id
    if query.request:
        like["request_id"] = context.find_request(query.request).id
    if not query.vm:
        return HistoryFilter(fields=like)
    vm = context.directory.find_any(query.vm)
    shared = [e.id for e in context.store.events(scope_id=vm.scope_id) if len(e.vms) > 1 and event_lists_vm(e, vm.name)]
    return HistoryFilter(fields={**like, "vm": vm.name}, shared_event_ids=tuple(shared[-_MAX_SHARED_EVENTS:]))


def read_history(
    context: RequestContext,
    entry_filter: HistoryFilter,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int,
    newest: bool = True,
) -> list[HistoryEntry]:
    """Oldest first: the newest ones within these bounds, or else the oldest."""
    bounds: dict[str, Any] = {"after": after, "before": before, "limit": limit, "newest": newest}
    found = context.store.history(**bounds, **entry_filter.fields)
    for event_id in entry_filter.shared_event_ids:
        if entry_filter.fields.get("event_id", event_id) == event_id:
            found += context.store.history(**bounds, **{**entry_filter.fields, "event_id": event_id, "vm": ""})
    seen = sorted((entry for entry in found if context.visibility.can_see_entry(entry)), key=lambda entry: entry.seq)
    return seen[-limit:] if newest else seen[:limit]
