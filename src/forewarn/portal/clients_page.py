"""The page of polling clients: which VM polls how often, how late it was told, and who is unprepared.

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

from forewarn.core.event import Event, EventState
from forewarn.core.fleet import PowerState, Vm
from forewarn.errors import Rejected
from forewarn.explain.polling import EventAwareness, PollingState, polling_state
from forewarn.portal.context import PortalContext
from forewarn.portal.export import MAX_EXPORT_ROWS, ExportTable, truncation_note
from forewarn.protocol.versions import VERSIONS, version_lists_kind
from forewarn.store.interface import LastPoll, Store
from forewarn.web.polling_report import ExpectedEvent, expected_events, iterate_cooperatively
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView

_BATCH_SIZE = 2000


class ClientFilter(StrEnum):
    """Whom one wants to see; "": all."""

    ALL = ""
    UNPREPARED = "unprepared"
    SILENT = "silent"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class RosterEntry:
    key: str
    polling_state: PollingState
    pending_event: ExpectedEvent | None

    @property
    def is_unprepared(self) -> bool:
        return self.pending_event is not None and self.pending_event.awareness is EventAwareness.NOBODY

    def matches(self, only: ClientFilter) -> bool:
        match only:
            case ClientFilter.UNPREPARED:
                return self.is_unprepared
            case ClientFilter.SILENT:
                return self.polling_state is PollingState.STOPPED
            case ClientFilter.NEVER:
                return self.polling_state is PollingState.NEVER
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingRoster:
    counts: Mapping[PollingState, int]  # of everybody
    unprepared: list[RosterEntry]  # of everybody, those first who are hit first
    entries: list[RosterEntry]  # in order


async def read_polling_roster(context: PortalContext, *, text: str, only: ClientFilter) -> PollingRoster:
    waiting = await expected_events(context.store, context.dependencies.pace_of)
    counts: Counter[PollingState] = Counter()
    unprepared: list[RosterEntry] = []
    ranks: dict[int, list[RosterEntry]] = {}
    async for key in iterate_cooperatively(list(context.overview.visible_keys(context.directory)), _BATCH_SIZE):
        is_off = context.directory.unfiltered.power_of(key) is not PowerState.RUNNING
        one = RosterEntry(key, polling_state(context.dependencies.pace_of(key), is_off=is_off), waiting.get(key))
        counts[one.polling_state] += 1
        if one.is_unprepared:
            unprepared.append(one)
        if one.matches(only) and text in key.partition("/")[2]:
            ranks.setdefault(_sort_rank(one), []).append(one)
    return PollingRoster(
        counts={word: counts[word] for word in PollingState},
        unprepared=sorted(unprepared, key=_not_before),
        entries=[one for rank in sorted(ranks) for one in _sort_by_event(ranks[rank])],
    )


_SORT_RANKS = {PollingState.STOPPED: 1, PollingState.NEVER: 2, PollingState.ACTIVE: 4, PollingState.OFF: 5}


def _sort_rank(one: RosterEntry) -> int:
    if one.is_unprepared:
        return 0
    rank = _SORT_RANKS[one.polling_state]
    return 3 if one.polling_state is PollingState.ACTIVE and one.pending_event is not None else rank


def _sort_by_event(ones: list[RosterEntry]) -> list[RosterEntry]:
    """Those whom something awaits first, by when; the others as the fleet is listed."""
    return sorted(ones, key=_not_before) if any(one.pending_event for one in ones) else ones


def _not_before(one: RosterEntry) -> float:
    return one.pending_event.event.not_before if one.pending_event else float("inf")


CLIENTS_PER_PAGE = 50
_MAX_NAMES_IN_HEADLINE = 5  # in the sentence on top
_MAX_DELIVERIES = 5  # events of which is told how late they were given
_MAX_EVENTS = 200  # of a scope, among which approvals are counted
_SCOPE_CACHE_SIZE = 64


class ClientsPageQuery(StrictBody, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] = ""
    only: str = ""
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class PendingEventView(BaseView, frozen=True, kw_only=True):
    id: str
    kind: str
    published_at: float
    not_before: float
    told: str  # nobody, soon, neighbour or given


class PollingClientView(BaseView, frozen=True, kw_only=True):
    """One VM, and what in it asks for events."""

    name: str
    key: str
    resource_group: str
    scope: str
    asks: str  # now, stopped, never or off
    agent: str
    version: str
    last_polled_at: float | None  # lab time
    silent_s: float | None  # real time
    gap_s: float | None  # real time, on average
    wait_s: int  # of its long polls
    polls: int
    given_after_s: float | None  # on average, of the last events that it was given
    last_given_after_s: float | None
    approvals: int
    last_approved_at: float | None
    pending: PendingEventView | None
    why: str  # it will be hit unprepared

    @property
    def is_unprepared(self) -> bool:
        return self.pending is not None and self.pending.told == EventAwareness.NOBODY


_CSV_COLUMNS = tuple(name for name in PollingClientView.__struct_fields__ if name != "pending")


class ClientsPage(BaseView, frozen=True, kw_only=True):
    now: float
    total: int
    asks: dict[str, int]
    unprepared: int
    unprepared_names: tuple[str, ...]  # the first of them
    hit_from: float | None  # the first of them, in lab time
    q: str
    only: str
    found: int
    page: int
    pages: int
    is_cut: bool  # a file that does not hold everything
    clients: tuple[PollingClientView, ...]

    @property
    def headline(self) -> str:
        if not self.unprepared:
            return ""
        names, more = ", ".join(self.unprepared_names), self.unprepared - len(self.unprepared_names)
        who = "1 VM" if self.unprepared == 1 else f"{self.unprepared} VMs"
        return f"{who} will be hit unprepared: {names}" + (f" and {more} more" if more else "")

    def table(self) -> ExportTable:
        columns = (*_CSV_COLUMNS, "event", "event_kind", "not_before", "told")
        note = truncation_note(self.is_cut, len(self.clients), self.found)
        return ExportTable(columns=columns, rows=[_csv_row(client) for client in self.clients], note=note)


def _csv_row(client: PollingClientView) -> tuple[object, ...]:
    pending = client.pending
    told = (pending.id, pending.kind, pending.not_before, pending.told) if pending else ("", "", None, "")
    return (*(getattr(client, name) for name in _CSV_COLUMNS), *told)


async def show_clients_page(context: PortalContext, call: HandlerCall, query: ClientsPageQuery) -> ClientsPage:
    """Who asks, those first who will be hit unprepared."""
    if query.only not in set(ClientFilter):
        raise Rejected(f"only={query.only!r} is nobody: say {', '.join(only for only in ClientFilter if only)}")
    await context.dependencies.flush_observations()
    roll = await read_polling_roster(context, text=query.q.strip().casefold(), only=ClientFilter(query.only))
    pages = max(1, -(-len(roll.entries) // CLIENTS_PER_PAGE))
    if query.page > pages:
        raise Rejected(f"there is no page {query.page}: the last one is {pages}")

    first = [
        vm.name for one in roll.unprepared[:_MAX_NAMES_IN_HEADLINE] if (vm := context.store.vm(one.key)) is not None
    ]
    in_view = roll.entries[(query.page - 1) * CLIENTS_PER_PAGE : query.page * CLIENTS_PER_PAGE]
    record = ScopeRecords(context.store)
    wanted = roll.entries[:MAX_EXPORT_ROWS] if call.for_export else in_view
    shown = [_client_view(context, record, one) async for one in iterate_cooperatively(wanted, 5)]
    soonest = roll.unprepared[0].pending_event if roll.unprepared else None
    return ClientsPage(
        now=context.now(),
        total=sum(roll.counts.values()),
        asks={str(word): count for word, count in roll.counts.items()},
        unprepared=len(roll.unprepared),
        unprepared_names=tuple(first),
        hit_from=soonest.event.not_before if soonest else None,
        q=query.q,
        only=query.only,
        found=len(roll.entries),
        page=query.page,
        pages=1 if call.for_export else pages,
        is_cut=call.for_export and len(roll.entries) > MAX_EXPORT_ROWS,
        clients=tuple(client for client in shown if client is not None),
    )


class ScopeRecords:
    """What is written of VMs: of scopes with many of them it is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.polls = lru_cache(_SCOPE_CACHE_SIZE)(self._read_polls)
        self.approvals = lru_cache(_SCOPE_CACHE_SIZE)(self._read_approvals)

    def _read_polls(self, scope_id: str) -> dict[str, LastPoll]:
        return {polled.vm: polled for polled in self._store.last_polls(scope_id=scope_id)}

    def _read_approvals(self, scope_id: str) -> dict[str, list[float]]:
        """When, by the names of those who approved."""
        found: dict[str, list[float]] = {}
        for event in self._store.events(scope_id=scope_id, limit=_MAX_EVENTS):
            if event.approved_at is not None:
                found.setdefault(event.approved_by, []).append(event.approved_at)
        return found


def _client_view(context: PortalContext, record: ScopeRecords, one: RosterEntry) -> PollingClientView | None:
    """None: it has just gone."""
    vm = context.store.vm(one.key)
    if vm is None or vm.removed_at is not None:
        return None
    polled = record.polls(vm.scope_id).get(vm.key)
    pace = context.dependencies.pace_of(vm.key)
    delays = _delivery_delays(context, vm)
    approved = record.approvals(vm.scope_id).get(vm.name, [])
    return PollingClientView(
        name=vm.name,
        key=vm.key,
        resource_group=vm.resource_group,
        scope=vm.scope_id,
        asks=one.polling_state,
        agent=polled.agent if polled else "",
        version=polled.version if polled else "",
        last_polled_at=polled.at if polled else None,
        silent_s=round(pace.silent_s, 1) if pace else None,
        gap_s=round(pace.gap_s, 2) if pace and pace.gap_s is not None else None,
        wait_s=polled.wait_s if polled else 0,
        polls=polled.count if polled else 0,
        given_after_s=round(sum(delays) / len(delays), 1) if delays else None,
        last_given_after_s=round(delays[-1], 1) if delays else None,
        approvals=len(approved),
        last_approved_at=max(approved, default=None),
        pending=_pending_event_view(one),
        why=_unprepared_reason(one, polled) if one.is_unprepared else "",
    )


def _delivery_delays(context: PortalContext, vm: Vm) -> list[float]:
    """From publication to the moment the VM was first given an event: of the last ones, in order."""
    given = [one for one in context.store.deliveries(vm=vm.key) if one.status == EventState.SCHEDULED][
        -_MAX_DELIVERIES:
    ]
    events = ((one, context.store.event(one.event_id)) for one in given)
    return [max(0.0, one.at - event.published_at) for one, event in events if event is not None]


def _pending_event_view(one: RosterEntry) -> PendingEventView | None:
    if one.pending_event is None:
        return None
    event = one.pending_event.event
    return PendingEventView(
        id=event.id,
        kind=_kind_name(event),
        published_at=event.published_at,
        not_before=event.not_before,
        told=one.pending_event.awareness,
    )


def _kind_name(event: Event) -> str:
    return event.rules.kind.value if event.rules.kind is not None else ""


def _unprepared_reason(one: RosterEntry, polled: LastPoll | None) -> str:
    """Nobody was told, in a few words."""
    assert one.pending_event is not None
    kind = one.pending_event.event.rules.kind
    match one.polling_state:
        case PollingState.OFF:
            return "it does not run"
        case PollingState.NEVER:
            return "nothing in it ever asked for events"
        case PollingState.STOPPED:
            return "it has stopped asking"
    if (
        polled is not None
        and kind is not None
        and polled.version in VERSIONS
        and not version_lists_kind(polled.version, kind)
    ):
        return f"it asks with {polled.version}, which does not show a {kind.value}"
    return "it asks, and was not given the event"
