"""The page of those who ask for events: which programs, how often, how late, who approved, and who never looked."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from forewarn.console.body import Strict
from forewarn.console.call import Call
from forewarn.console.portal.context import PortalContext
from forewarn.console.portal.page import MOST_TAKEN, Table, cut_note
from forewarn.console.portal.roll import Called, Only, call_the_roll
from forewarn.console.survey import in_stretches
from forewarn.console.views import View
from forewarn.core.attention import Asks, Told
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Vm
from forewarn.errors import Rejected
from forewarn.protocol.versions import VERSIONS, shows_kind
from forewarn.store.seam import Polled, Store

PER_PAGE = 50
_NAMED = 5  # in the sentence on top
_LAST_GIVEN = 5  # events of which is told how late they were given
_LAST_EVENTS = 200  # of a scope, among which approvals are counted
_SCOPES_AT_HAND = 64


class ClientsQuery(Strict, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] = ""
    only: str = ""
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class PendingView(View, frozen=True, kw_only=True):
    id: str
    kind: str
    published_at: float
    not_before: float
    told: str  # nobody, soon, neighbour or given


class ClientView(View, frozen=True, kw_only=True):
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
    pending: PendingView | None
    why: str  # it will be hit unprepared

    @property
    def is_unprepared(self) -> bool:
        return self.pending is not None and self.pending.told == Told.NOBODY


_COLUMNS = tuple(name for name in ClientView.__struct_fields__ if name != "pending")


class ClientsPage(View, frozen=True, kw_only=True):
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
    clients: tuple[ClientView, ...]

    @property
    def headline(self) -> str:
        if not self.unprepared:
            return ""
        names, more = ", ".join(self.unprepared_names), self.unprepared - len(self.unprepared_names)
        who = "1 VM" if self.unprepared == 1 else f"{self.unprepared} VMs"
        return f"{who} will be hit unprepared: {names}" + (f" and {more} more" if more else "")

    def table(self) -> Table:
        columns = (*_COLUMNS, "event", "event_kind", "not_before", "told")
        note = cut_note(self.is_cut, len(self.clients), self.found)
        return Table(columns=columns, rows=[_row(client) for client in self.clients], note=note)


def _row(client: ClientView) -> tuple[object, ...]:
    pending = client.pending
    told = (pending.id, pending.kind, pending.not_before, pending.told) if pending else ("", "", None, "")
    return (*(getattr(client, name) for name in _COLUMNS), *told)


async def show(room: PortalContext, call: Call, query: ClientsQuery) -> ClientsPage:
    """Who asks, those first who will be hit unprepared."""
    if query.only not in set(Only):
        raise Rejected(f"only={query.only!r} is nobody: say {', '.join(only for only in Only if only)}")
    await room.house.observe()
    roll = await call_the_roll(room, text=query.q.strip().casefold(), only=Only(query.only))
    pages = max(1, -(-len(roll.wanted) // PER_PAGE))
    if query.page > pages:
        raise Rejected(f"there is no page {query.page}: the last one is {pages}")

    first = [vm.name for one in roll.unprepared[:_NAMED] if (vm := room.store.vm(one.key)) is not None]
    in_view = roll.wanted[(query.page - 1) * PER_PAGE : query.page * PER_PAGE]
    record = Record(room.store)
    wanted = roll.wanted[:MOST_TAKEN] if call.whole else in_view
    shown = [_client(room, record, one) async for one in in_stretches(wanted, 5)]
    soonest = roll.unprepared[0].awaited if roll.unprepared else None
    return ClientsPage(
        now=room.now(),
        total=sum(roll.asks.values()),
        asks={str(word): count for word, count in roll.asks.items()},
        unprepared=len(roll.unprepared),
        unprepared_names=tuple(first),
        hit_from=soonest.event.not_before if soonest else None,
        q=query.q,
        only=query.only,
        found=len(roll.wanted),
        page=query.page,
        pages=1 if call.whole else pages,
        is_cut=call.whole and len(roll.wanted) > MOST_TAKEN,
        clients=tuple(client for client in shown if client is not None),
    )


class Record:
    """What is written of VMs: of scopes with many of them it is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.polls = lru_cache(_SCOPES_AT_HAND)(self._polls)
        self.approvals = lru_cache(_SCOPES_AT_HAND)(self._approvals)

    def _polls(self, scope_id: str) -> dict[str, Polled]:
        return {polled.vm: polled for polled in self._store.polls(scope_id=scope_id)}

    def _approvals(self, scope_id: str) -> dict[str, list[float]]:
        """When, by the names of those who approved."""
        found: dict[str, list[float]] = {}
        for event in self._store.events(scope_id=scope_id, limit=_LAST_EVENTS):
            if event.approved_at is not None:
                found.setdefault(event.approved_by, []).append(event.approved_at)
        return found


def _client(room: PortalContext, record: Record, one: Called) -> ClientView | None:
    """None: it has just gone."""
    vm = room.store.vm(one.key)
    if vm is None or vm.removed_at is not None:
        return None
    polled = record.polls(vm.scope_id).get(vm.key)
    pace = room.house.pace(vm.key)
    delays = _delays(room, vm)
    approved = record.approvals(vm.scope_id).get(vm.name, [])
    return ClientView(
        name=vm.name,
        key=vm.key,
        resource_group=vm.resource_group,
        scope=vm.scope_id,
        asks=one.asks,
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
        pending=_pending(one),
        why=_why(one, polled) if one.is_unprepared else "",
    )


def _delays(room: PortalContext, vm: Vm) -> list[float]:
    """From publication to the moment the VM was first given an event: of the last ones, in order."""
    given = [one for one in room.store.sightings(vm=vm.key) if one.status == Status.SCHEDULED][-_LAST_GIVEN:]
    events = ((one, room.store.event(one.event_id)) for one in given)
    return [max(0.0, one.at - event.published_at) for one, event in events if event is not None]


def _pending(one: Called) -> PendingView | None:
    if one.awaited is None:
        return None
    event = one.awaited.event
    return PendingView(
        id=event.id,
        kind=_kind(event),
        published_at=event.published_at,
        not_before=event.not_before,
        told=one.awaited.told,
    )


def _kind(event: Event) -> str:
    return event.row.kind.value if event.row.kind is not None else ""


def _why(one: Called, polled: Polled | None) -> str:
    """Nobody was told, in a few words."""
    assert one.awaited is not None
    kind = one.awaited.event.row.kind
    match one.asks:
        case Asks.OFF:
            return "it does not run"
        case Asks.NEVER:
            return "nothing in it ever asked for events"
        case Asks.STOPPED:
            return "it has stopped asking"
    if polled is not None and kind is not None and polled.version in VERSIONS and not shows_kind(polled.version, kind):
        return f"it asks with {polled.version}, which does not show a {kind.value}"
    return "it asks, and was not given the event"
