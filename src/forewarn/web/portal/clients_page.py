"""The clients page: how VMs poll, how late events were delivered, and which VMs have no handler.

The roster of all visible VMs comes from memory; the store is read for the VMs in view only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from forewarn.base.times import Timestamp, timestamp
from forewarn.base.wording import first_names
from forewarn.core.event import Event, EventState
from forewarn.core.explain.polling import EventAwareness, PollingState, polling_state
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.history import LastPoll
from forewarn.protocol.versions import ALL_VERSIONS, version_lists_kind
from forewarn.store.interface import Store
from forewarn.web.polling_report import ExpectedEvent, expected_events, iterate_cooperatively
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.export import MAX_EXPORT_ROWS, ExportTable, truncation_note
from forewarn.web.portal.filters import require_choice, require_page
from forewarn.web.portal.states import state_label
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView

_BATCH_SIZE = 2000  # VMs read before other tasks run


class ClientFilter(StrEnum):
    """Which VMs the clients page lists. The values are used in the query parameter `only`."""

    ALL = ""
    WITHOUT_HANDLER = "without-handler"  # no VM of its scope knows of its pending event, or is about to
    SILENT = "silent"  # it runs, but stopped polling
    NEVER = "never"  # it runs, but never polled


# What the page calls each filter, except ALL.
CLIENT_FILTER_LABELS = {
    str(ClientFilter.WITHOUT_HANDLER): "without a handler",
    str(ClientFilter.SILENT): state_label(PollingState.STOPPED, "polling"),
    str(ClientFilter.NEVER): state_label(PollingState.NEVER, "polling"),
}


@dataclass(frozen=True, slots=True)
class _RosterEntry:
    key: str
    polling_state: PollingState
    pending_event: ExpectedEvent | None  # None: no listed event of it is scheduled

    @property
    def is_without_handler(self) -> bool:
        """Whether it has a pending event that no VM of its scope has received or is about to receive."""
        return self.pending_event is not None and self.pending_event.awareness is EventAwareness.NO_VM

    def matches(self, client_filter: ClientFilter) -> bool:
        match client_filter:
            case ClientFilter.WITHOUT_HANDLER:
                return self.is_without_handler
            case ClientFilter.SILENT:
                return self.polling_state is PollingState.STOPPED
            case ClientFilter.NEVER:
                return self.polling_state is PollingState.NEVER
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _PollingRoster:
    """How the VMs poll that the user may see: counts of all, and the entries of those that match a search."""

    counts: Mapping[PollingState, int]  # of all these VMs, for every state
    without_handler: list[_RosterEntry]  # of all these VMs; the one with the earliest event first
    # VMs that match: those without a handler first, then stopped, never polled, polling with an event, polling, not
    # running; each of these by the time of its event, and those without one in the order of the fleet.
    entries: list[_RosterEntry]


async def _read_polling_roster(context: PortalContext, *, text: str, client_filter: ClientFilter) -> _PollingRoster:
    expected = await expected_events(context.store, context.dependencies.pace_of)
    counts: Counter[PollingState] = Counter()
    without_handler: list[_RosterEntry] = []
    ranks: dict[int, list[_RosterEntry]] = {}
    async for key in iterate_cooperatively(list(context.overview.visible_keys(context.directory)), _BATCH_SIZE):
        is_off = context.directory.unfiltered.power_of(key) is not PowerState.RUNNING
        entry = _RosterEntry(key, polling_state(context.dependencies.pace_of(key), is_off=is_off), expected.get(key))
        counts[entry.polling_state] += 1
        if entry.is_without_handler:
            without_handler.append(entry)
        if entry.matches(client_filter) and text in key.partition("/")[2]:
            ranks.setdefault(_sort_rank(entry), []).append(entry)
    return _PollingRoster(
        counts={state: counts[state] for state in PollingState},
        without_handler=sorted(without_handler, key=_not_before),
        entries=[entry for rank in sorted(ranks) for entry in _sort_by_event(ranks[rank])],
    )


_SORT_RANKS = {PollingState.STOPPED: 1, PollingState.NEVER: 2, PollingState.ACTIVE: 4, PollingState.OFF: 5}


def _sort_rank(entry: _RosterEntry) -> int:
    if entry.is_without_handler:
        return 0
    rank = _SORT_RANKS[entry.polling_state]
    return 3 if entry.polling_state is PollingState.ACTIVE and entry.pending_event is not None else rank


def _sort_by_event(entries: list[_RosterEntry]) -> list[_RosterEntry]:
    """VMs with a pending event first, by its time; the others in the order of the fleet."""
    return sorted(entries, key=_not_before) if any(entry.pending_event for entry in entries) else entries


def _not_before(entry: _RosterEntry) -> float:
    return entry.pending_event.event.not_before if entry.pending_event else float("inf")


CLIENTS_PER_PAGE = 50
_MAX_NAMES_IN_HEADLINE = 5
_MAX_DELIVERIES = 5  # per VM, for its delivery delay
_MAX_EVENTS = 200  # per scope, in which approvals are counted
_SCOPE_CACHE_SIZE = 64


class ClientsPageQuery(StrictBody, frozen=True, kw_only=True):
    """The query of the clients page: a search in group and name, a filter, and a page number."""

    q: Annotated[str, Meta(max_length=200)] = ""  # searched in `group/name`, ignoring letter case; "": all VMs
    only: str = ""  # a ClientFilter: without-handler, silent or never; "": all VMs
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1  # from 1


class PendingEventView(BaseView, frozen=True, kw_only=True):
    """The pending event that a VM knows least of: scheduled, listed in documents, and affecting the VM."""

    id: str  # a GUID, upper case
    kind: str  # such as Reboot
    published_at: Timestamp
    not_before: Timestamp
    delivery: str  # nobody, soon (a VM of the scope polls), neighbour (only other VMs of it know) or given (to the VM)


class PollingClientView(BaseView, frozen=True, kw_only=True):
    """One VM and the client that polls in it. Field names are JSON keys and CSV columns.

    Where nothing was observed, a number is None. A VM is without a handler if it has a pending event that no VM
    of its scope has received or is about to receive.
    """

    name: str  # the name of the VM
    key: str  # the key of the VM
    resource_group: str  # of the VM
    scope: str  # its id
    polling: str  # whether it polls, a PollingState: now, stopped, never or off (the VM does not run)
    agent: str  # the User-Agent of the last poll; "" if it never polled
    version: str  # the api-version of the last poll; "" if it never polled
    last_polled_at: Timestamp | None  # None: it never polled
    silent_s: float | None  # real time since it polled; None: it never polled
    gap_s: float | None  # real time between two polls, on average; None: not known
    wait_s: int  # how long its last poll lets the server hold it, a long poll; 0: not
    polls: int  # so far
    delivered_after_s: (
        float | None
    )  # lab time from publication to delivery, average of its last five events; None: of none
    last_delivered_after_s: float | None  # the same, of the last of them
    approvals: int  # how many of the last 200 events of its scope it approved
    last_approved_at: Timestamp | None  # None: it approved none of them
    pending: PendingEventView | None  # None: it has no pending event
    no_handler_reason: str  # why its pending event reaches no handler, in words; "": it does, or there is none

    @property
    def is_without_handler(self) -> bool:
        """Whether the VM has a pending event that no VM of its scope has received or is about to receive."""
        return self.pending is not None and self.pending.delivery == EventAwareness.NO_VM


_CSV_COLUMNS = tuple(name for name in PollingClientView.__struct_fields__ if name != "pending")


class ClientsPage(BaseView, frozen=True, kw_only=True):
    """The clients page: counts, VMs without a handler, and one page of the VMs that match. Names are JSON keys.

    A VM is without a handler if it has a pending event that no VM of its scope has received or is about to receive.
    """

    now: Timestamp
    total: int  # all VMs that the user may see
    polling: dict[str, int]  # of these, by PollingState: now, stopped, never and off
    without_handler: int  # of these: VMs with a pending event that no handler knows of
    without_handler_names: tuple[str, ...]  # of the five of them with the earliest events, or fewer
    impact_from: Timestamp | None  # NotBefore of the first event of such a VM; None: there is none
    q: str  # the search; this and `only` are those of the query
    only: str  # the chosen filter; "": all VMs
    found: int  # VMs that match
    page: int  # its number
    pages: int  # how many there are; an export is one
    is_partial: bool  # this export does not hold all VMs that match
    clients: tuple[PollingClientView, ...]  # on this page, or in this export

    @property
    def filters(self) -> dict[str, str]:
        """The label of each filter that the page offers, by the value of the query parameter `only`."""
        return CLIENT_FILTER_LABELS

    @property
    def headline(self) -> str:
        """How many VMs are without a handler, and the names of the first five, without a full stop; "" for none."""
        if not self.without_handler:
            return ""
        vms = (
            "1 VM with a pending event has"
            if self.without_handler == 1
            else f"{self.without_handler} VMs with pending events have"
        )
        names = first_names(self.without_handler_names, len(self.without_handler_names), total=self.without_handler)
        return f"{vms} no handler: {names}"

    def table(self) -> ExportTable:
        """Return the CSV export: one row per VM of `clients`."""
        columns = (*_CSV_COLUMNS, "event", "event_kind", "not_before", "delivery")
        note = truncation_note(self.is_partial, len(self.clients), self.found)
        return ExportTable(columns=columns, rows=[_csv_row(client) for client in self.clients], note=note)


def _csv_row(client: PollingClientView) -> tuple[object, ...]:
    pending = client.pending
    delivery_cells = (pending.id, pending.kind, pending.not_before, pending.delivery) if pending else ("", "", None, "")
    return (*(getattr(client, name) for name in _CSV_COLUMNS), *delivery_cells)


async def show_clients_page(context: PortalContext, call: HandlerCall, query: ClientsPageQuery) -> ClientsPage:
    """Show the VMs that the user may see and that match the query, and how they poll; 50 per page."""
    require_choice("only", query.only, CLIENT_FILTER_LABELS, "a filter of this page")
    await context.dependencies.flush_observations()
    roster = await _read_polling_roster(
        context, text=query.q.strip().casefold(), client_filter=ClientFilter(query.only)
    )
    pages = max(1, -(-len(roster.entries) // CLIENTS_PER_PAGE))
    require_page(query.page, pages)

    first = [
        vm.name
        for entry in roster.without_handler[:_MAX_NAMES_IN_HEADLINE]
        if (vm := context.store.vm(entry.key)) is not None
    ]
    page_entries = roster.entries[(query.page - 1) * CLIENTS_PER_PAGE : query.page * CLIENTS_PER_PAGE]
    records = _ScopeRecords(context.store)
    exported = roster.entries[:MAX_EXPORT_ROWS] if call.for_export else page_entries
    shown = [_client_view(context, records, entry) async for entry in iterate_cooperatively(exported, 5)]
    soonest = roster.without_handler[0].pending_event if roster.without_handler else None
    return ClientsPage(
        now=timestamp(context.now()),
        total=sum(roster.counts.values()),
        polling={str(state): count for state, count in roster.counts.items()},
        without_handler=len(roster.without_handler),
        without_handler_names=tuple(first),
        impact_from=timestamp(soonest.event.not_before if soonest else None),
        q=query.q,
        only=query.only,
        found=len(roster.entries),
        page=query.page,
        pages=1 if call.for_export else pages,
        is_partial=call.for_export and len(roster.entries) > MAX_EXPORT_ROWS,
        clients=tuple(client for client in shown if client is not None),
    )


class _ScopeRecords:
    """Reads polls and approvals of a scope once for all its VMs, and caches them. Lives for one request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.polls = lru_cache(_SCOPE_CACHE_SIZE)(self._read_polls)
        self.approvals = lru_cache(_SCOPE_CACHE_SIZE)(self._read_approvals)

    def _read_polls(self, scope_id: str) -> dict[str, LastPoll]:
        return {last_poll.vm: last_poll for last_poll in self._store.last_polls(scope_id=scope_id)}

    def _read_approvals(self, scope_id: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for event in self._store.events(scope_id=scope_id, limit=_MAX_EVENTS):
            if event.approved_at is not None:
                found.setdefault(event.approved_by, []).append(event.approved_at)
        return found


def _client_view(context: PortalContext, records: _ScopeRecords, entry: _RosterEntry) -> PollingClientView | None:
    vm = context.store.vm(entry.key)
    if vm is None or vm.removed_at is not None:
        return None
    last_poll = records.polls(vm.scope_id).get(vm.key)
    pace = context.dependencies.pace_of(vm.key)
    delays = _delivery_delays(context, vm)
    approved = records.approvals(vm.scope_id).get(vm.name, [])
    return PollingClientView(
        name=vm.name,
        key=vm.key,
        resource_group=vm.resource_group,
        scope=vm.scope_id,
        polling=entry.polling_state,
        agent=last_poll.agent if last_poll else "",
        version=last_poll.version if last_poll else "",
        last_polled_at=timestamp(last_poll.at if last_poll else None),
        silent_s=round(pace.silent_s, 1) if pace else None,
        gap_s=round(pace.gap_s, 2) if pace and pace.gap_s is not None else None,
        wait_s=last_poll.wait_s if last_poll else 0,
        polls=last_poll.count if last_poll else 0,
        delivered_after_s=round(sum(delays) / len(delays), 1) if delays else None,
        last_delivered_after_s=round(delays[-1], 1) if delays else None,
        approvals=len(approved),
        last_approved_at=timestamp(max(approved, default=None)),
        pending=_pending_event_view(entry),
        no_handler_reason=_no_handler_reason(entry, last_poll) if entry.is_without_handler else "",
    )


def _delivery_delays(context: PortalContext, vm: Vm) -> list[float]:
    deliveries = [
        delivery for delivery in context.store.deliveries(vm=vm.key) if delivery.status == EventState.SCHEDULED
    ]
    last = deliveries[-_MAX_DELIVERIES:]
    events = ((delivery, context.store.event(delivery.event_id)) for delivery in last)
    return [max(0.0, delivery.at - event.published_at) for delivery, event in events if event is not None]


def _pending_event_view(entry: _RosterEntry) -> PendingEventView | None:
    if entry.pending_event is None:
        return None
    event = entry.pending_event.event
    return PendingEventView(
        id=event.id,
        kind=_kind_name(event),
        published_at=timestamp(event.published_at),
        not_before=timestamp(event.not_before),
        delivery=entry.pending_event.awareness,
    )


def _kind_name(event: Event) -> str:
    return event.rules.kind.value if event.rules.kind is not None else ""


def _no_handler_reason(entry: _RosterEntry, last_poll: LastPoll | None) -> str:
    assert entry.pending_event is not None
    kind = entry.pending_event.event.rules.kind
    match entry.polling_state:
        case PollingState.OFF:
            return "the VM is not running"
        case PollingState.NEVER:
            return "no client has polled yet"
        case PollingState.STOPPED:
            return "the client stopped polling"
    if (
        last_poll is not None
        and kind is not None
        and last_poll.version in ALL_VERSIONS
        and not version_lists_kind(last_poll.version, kind)
    ):
        return f"the client polls with {last_poll.version}, which does not list {kind.value} events"
    return "the client polls, but has not received the event"
