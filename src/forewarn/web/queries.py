"""Reads that the surfaces share: the events of a host or VM, and filtered entries of the history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from forewarn.core.event import Event, EventState
from forewarn.core.history import HistoryEntry
from forewarn.core.limits import HistorySeq, Name, ResultLimit
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import StrictBody

MAX_WAIT_S = 60.0  # the longest long poll of the history, in seconds of real time
_MAX_SHARED_EVENTS = 100  # the newest events of a VM whose entries are read


class HistoryEntriesQuery(StrictBody, frozen=True, kw_only=True):
    """Which history entries to list: those that match every given filter.

    With `after`, a sequence number, the oldest entries after that one are listed, else the newest. `wait_s` is how long
    to wait for an entry if there is none to list, in seconds of real time; 0: do not wait. Letter case of names and ids
    is ignored.
    """

    after: HistorySeq | None = None  # exclusive; 0 is before the first entry
    vm: Name = ""  # a name, `group/name` or key, also of a removed VM; "": any, as for the three below
    event: Name = ""  # an id or a unique prefix of four characters or more
    request: Name = ""  # a full id
    scope: Name = ""  # an id or name, or the name of a VM in it
    limit: ResultLimit = 1000  # the most entries to return, up to 1,000,000
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0  # up to 60; 0: do not wait


def live_events(context: RequestContext) -> list[Event]:
    """Return all scheduled and started events."""
    return context.store.events(statuses=[EventState.SCHEDULED, EventState.STARTED])


def events_on_host(context: RequestContext, host: str, events: Iterable[Event]) -> list[Event]:
    """Return those of the events that concern this host, in the same order."""
    # A past event does not count merely because its VM moved here later.
    vms_on_host = {(vm.scope_id, vm.name.casefold()) for vm in context.store.vms(host=host)}
    return [
        event
        for event in events
        if event.host == host
        or any(host in (act.from_host, act.to_host) for act in event.acts)
        or (
            event.status is EventState.SCHEDULED
            and any((event.scope_id, name.casefold()) in vms_on_host for name in event.vms)
        )
    ]


def event_lists_vm(event: Event, name: str) -> bool:
    """Return whether the event affects a VM of this name, ignoring letter case; the scope is not compared."""
    wanted = name.casefold()
    return any(vm.casefold() == wanted for vm in event.vms)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Which history entries `read_history` returns."""

    fields: dict[str, Any]  # scope_id, event_id, request_id and vm (a name), as far as given; {}: all entries
    # Events of the filtered VM and others, at most the 100 newest: their entries that name no VM are included.
    shared_event_ids: tuple[str, ...] = ()  # of the VM and others: entries about them that name no VM are included too
    # Events that the filtered request approved: their entries name another request, and are included from then on.
    approved_event_ids: tuple[str, ...] = ()  # that the request approved: later entries about them are included too
    approved_seq: int = 0  # of the request's first entry: later ones of `approved_event_ids` are included


def history_filter(context: RequestContext, query: HistoryEntriesQuery) -> HistoryFilter:
    """Return the filter for this query, with its names and id prefixes resolved; its VM may be removed."""
    fields: dict[str, Any] = {}
    if query.scope:
        fields["scope_id"] = context.find_scope(query.scope).id
    if query.event:
        fields["event_id"] = context.find_event(query.event).id
    approved: tuple[str, ...] = ()
    if query.request:
        request = context.find_request(query.request)
        fields["request_id"], approved = request.id, request.approves
    if not query.vm:
        first = context.store.history(request_id=fields["request_id"], limit=1, newest=False) if approved else []
        seq = first[0].seq if first else 0
        return HistoryFilter(fields=fields, approved_event_ids=approved, approved_seq=seq)
    vm = context.directory.find_any(query.vm)
    shared = [e.id for e in context.store.events(scope_id=vm.scope_id) if len(e.vms) > 1 and event_lists_vm(e, vm.name)]
    return HistoryFilter(fields={**fields, "vm": vm.name}, shared_event_ids=tuple(shared[-_MAX_SHARED_EVENTS:]))


def read_history(
    context: RequestContext,
    entry_filter: HistoryFilter,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int,
    newest: bool = True,
) -> list[HistoryEntry]:
    """Return at most `limit` history entries that match the filter and the caller may see, oldest first."""
    # Entries that the caller may not see count towards the limit, so fewer may be returned although there are more.
    found = matching_entries(context, entry_filter, after=after, before=before, limit=limit, newest=newest)
    return context.visibility.visible_entries(found)


def matching_entries(
    context: RequestContext,
    entry_filter: HistoryFilter,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int,
    newest: bool = True,
) -> list[HistoryEntry]:
    """Return at most `limit` history entries that match the filter, visible or not, oldest first.

    Pass them through `Visibility.visible_entries` before a caller is shown any.
    """
    bounds: dict[str, Any] = {"after": after, "before": before, "limit": limit, "newest": newest}
    found = context.store.history(**bounds, **entry_filter.fields)
    for event_id in entry_filter.shared_event_ids:
        if entry_filter.fields.get("event_id", event_id) == event_id:
            found += context.store.history(**bounds, **{**entry_filter.fields, "event_id": event_id, "vm": ""})
    since = {**bounds, "after": max(after, entry_filter.approved_seq)}
    for event_id in entry_filter.approved_event_ids:
        if entry_filter.fields.get("event_id", event_id) == event_id:
            fields = {**entry_filter.fields, "event_id": event_id}
            del fields["request_id"]
            found += context.store.history(**since, **fields)
    entries = sorted(found, key=lambda entry: entry.seq)
    return entries[-limit:] if newest else entries[:limit]
