"""The page of one event: facts, affected VMs, explanation, and the document in every api-version.

The documents are encoded as the metadata endpoint sends them. Documents of the past are not stored, so an event
that is over is shown alone, in its last form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.event import Act, Event, EventState
from forewarn.core.explain.explanation import Explanation
from forewarn.core.fleet import vm_key_in_scope
from forewarn.core.history import EventDelivery
from forewarn.core.projection import document_for, wire_notice
from forewarn.core.scope import Scope, enable_scope
from forewarn.protocol.codec import encode_document
from forewarn.protocol.dates import iso_date
from forewarn.protocol.document import Document, Kind
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.versions import version_lists_kind
from forewarn.web.context import RequestContext
from forewarn.web.explain import explain_event
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.filters import PageQuery, items_on_page
from forewarn.web.portal.request_page import request_page_path
from forewarn.web.portal.status_card import EventStatusCard, event_status_card
from forewarn.web.portal.timeline_chart import (
    LEGEND,
    EventRow,
    TimelineChart,
    build_chart,
    event_row_for,
    render_standalone_svg,
    window_for_rows,
)
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.views import BaseView, EventView, ViewBuilder


class VersionRendering(BaseView, frozen=True, kw_only=True):
    """What VMs that poll with one api-version receive of an event."""

    version: str  # the api-version
    text: str  # the document as it is sent; of an event that is over, the event alone, or "" if `hidden`
    hidden: str  # a sentence: this version does not list such events; "" if it does

    @property
    def pretty_json(self) -> str:
        """The JSON of `text` with line breaks and indentation; "" if `text` is empty."""
        return json.dumps(json.loads(self.text), indent=2) if self.text else ""


class WireView(BaseView, frozen=True, kw_only=True):
    """What VMs receive of an event in every api-version."""

    is_shown: bool  # the event is in the document that VMs receive now, or will with their first poll
    explanation: str  # sentences that introduce `versions`: who receives them, and when
    versions: tuple[VersionRendering, ...]  # newest first; empty for an event that no document ever showed


_SHOWN_NOW = "Every VM of the scope receives this document now, in each api-version, byte for byte."
_SHOWN_ON_FIRST_POLL = (
    "No client polls in this scope, so no VM receives the event. The first VM that polls will receive this document, "
    "in each api-version, byte for byte."
)
_SHOWN_NOW_TO_ONE = (
    "VM {vm} receives this document now, in each api-version, byte for byte. Other VMs of the scope receive only the "
    "events that affect them (narrow delivery)."
)
_SHOWN_TO_ONE_ON_FIRST_POLL = (
    "No client polls in this scope, so no VM receives the event. VM {vm} will receive this document with its first "
    "poll, in each api-version, byte for byte; other VMs only the events that affect them (narrow delivery)."
)
_NO_LONGER_SHOWN = (
    "The event is no longer in any document. This is how VMs last received it. Past documents are not stored, so their "
    "incarnation and their other events are unknown."
)
_NEVER_SHOWN = "The event was never in a document: it was performed at once, without notice."


def _wire_view(event: Event, scope: Scope | None, rules_for: Callable[[str], EndpointRules]) -> WireView:
    """What VMs receive of an event in every api-version: now if it is live, else what they last received."""
    kind = event.rules.kind
    if kind is None or not event.listed:
        return WireView(is_shown=False, explanation=_NEVER_SHOWN, versions=())
    rules = rules_for(scope.present_vms[0].location if scope is not None and scope.present_vms else "")
    if event.is_live and scope is not None:
        # The first poll enables the scope and receives its pending events.
        document = document_for(enable_scope(scope, by="", now=0.0))
        told = _SHOWN_NOW if scope.is_enabled else _SHOWN_ON_FIRST_POLL
        if scope.is_narrow:
            document = document.narrowed_to(event.vms[0])
            sentences = _SHOWN_NOW_TO_ONE if scope.is_enabled else _SHOWN_TO_ONE_ON_FIRST_POLL
            told = sentences.format(vm=event.vms[0])
        return WireView(is_shown=True, explanation=told, versions=_renderings(document, kind, rules))
    return WireView(is_shown=False, explanation=_NO_LONGER_SHOWN, versions=_last_renderings(event, kind, rules))


def _renderings(document: Document, kind: Kind, rules: EndpointRules) -> tuple[VersionRendering, ...]:
    return tuple(
        VersionRendering(
            version=version, text=_encode_text(document, version, rules), hidden=_hidden_reason(version, kind)
        )
        for version in reversed(rules.versions)
    )


def _last_renderings(event: Event, kind: Kind, rules: EndpointRules) -> tuple[VersionRendering, ...]:
    """The event alone, as Started if it ever started."""
    status = EventState.SCHEDULED if event.started_at is None else EventState.STARTED
    roles = event.scope_id.startswith("service:")
    single_event = Document(incarnation=0, notices=(wire_notice(replace(event, status=status)),), roles=roles)
    return tuple(
        VersionRendering(
            version=version,
            text=_event_json(_encode_text(single_event, version, rules)),
            hidden=_hidden_reason(version, kind),
        )
        for version in reversed(rules.versions)
    )


def _event_json(document: str) -> str:
    events = json.loads(document)["Events"]
    return json.dumps(events[0], separators=(",", ":")) if events else ""


def _encode_text(document: Document, version: str, rules: EndpointRules) -> str:
    return encode_document(document, version, iso_dates=rules.iso_dates).decode("ascii")


def _hidden_reason(version: str, kind: Kind) -> str:
    if version_lists_kind(version, kind):
        return ""
    return f"{version} does not list {kind} events: a VM that polls with it does not receive this one."


_MAX_EXPORTED_VMS = 500
_VMS_PER_PAGE = 15


class EventVmView(BaseView, frozen=True, kw_only=True):
    """One VM of an event: when it received the event, and what was done to it. Field names are JSON keys."""

    name: str  # the name of the VM; its key if the name is not known any more
    key: str  # the key of the VM
    is_affected: bool  # the event affects it; else it only received the event, as a member of the scope
    is_known: bool  # the user may see its page
    delivered_at: Timestamp | None  # first delivery as Scheduled; None: there was none
    version: str  # api-version of the first delivery, as Scheduled or Started; "": there was none
    delivered_as_started_at: Timestamp | None  # first delivery as Started; None: there was none
    verb: str  # the Verb of its act, such as reboot; "": it has none, as before the event starts
    ok: bool | None  # whether the act succeeded; None until its outcome is known
    performed_at: Timestamp | None  # of the outcome; None: it is not known yet
    note: str  # while the act is under way: its progress; then of the outcome, such as why it failed

    @property
    def outcome(self) -> str:
        """The state of the act on the VM: in progress, performed or failed; "" if there is no act."""
        if not self.verb:
            return ""
        return {None: "in progress", True: "performed", False: "failed"}[self.ok]


class EventPage(BaseView, frozen=True, kw_only=True):
    """The page of one event, live or over. Field names are JSON keys."""

    now: Timestamp
    card: EventStatusCard  # its state, what it waits for, and which forms the user may submit
    event: EventView
    lane: EventRow  # the same event as the only row of the chart
    faults: tuple[str, ...]  # ids of faults that affected it; empty for users who may not see everything
    gate: str  # describes the gate that starts it together with others; "": none
    request_path: str  # path of the page of its request; "" if there is none, or the user may not see it
    vms: tuple[EventVmView, ...]  # affected ones first, then others that received it; 15 per page, 500 in an export
    more_vms: int  # how many are left out of an export
    page: int  # its number, from 1
    pages: int  # how many there are
    explanation: Explanation  # what happened, and what the event waits for, in sentences
    wire: WireView  # what VMs receive of it

    def chart(self) -> TimelineChart:
        """Return the chart that the page shows: the event over time, without the title of its scope."""
        return build_chart([self.lane], window_for_rows([self.lane], self.now), self.now, banded=False)

    def svg(self) -> str:
        """Return the text of the SVG export: the event over time, with the title of its scope."""
        return render_standalone_svg(build_chart([self.lane], window_for_rows([self.lane], self.now), self.now))

    def table(self) -> ExportTable:
        """Return the CSV export: for each VM of `vms`, when it was given the event and what was done to it."""
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(vm) for vm in self.vms])

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """The legend of the chart: pairs of a symbol's name (its CSS class) and its text, in order."""
        return LEGEND


async def show_event_page(context: RequestContext, call: HandlerCall, query: PageQuery) -> EventPage:
    """Show an event, live or over."""
    await context.dependencies.flush_observations()
    event = context.find_event(call.path_params["id"])
    views = ViewBuilder(context)
    all_vms = list(_event_vms(context, event))
    vms, pages = items_on_page(all_vms, query.page, _MAX_EXPORTED_VMS if call.for_export else _VMS_PER_PAGE)
    return EventPage(
        now=timestamp(context.now()),
        card=event_status_card(context, event),
        event=views.event(event),
        lane=event_row_for(views, event),
        faults=event.faults if context.can_see_everything() else (),
        gate=_gate_text(context, event),
        request_path=request_page_path(context, event.request_id),
        vms=tuple(vms),
        more_vms=len(all_vms) - len(vms) if call.for_export else 0,
        page=query.page,
        pages=pages,
        explanation=explain_event(context, event),
        wire=_wire_view(event, views.load_scope(event.scope_id), context.dependencies.rules_for),
    )


def _gate_text(context: RequestContext, event: Event) -> str:
    gate = context.store.gate(event.gate_id) if event.gate_id else None
    if gate is None:
        return ""
    gate_text = "the gate is closed" if gate.released_at is None else f"the gate opened at {iso_date(gate.released_at)}"
    return f"together with the other VMs on host {gate.host}; {gate_text}"


def _event_vms(context: RequestContext, event: Event) -> Iterator[EventVmView]:
    """The VMs that the event affects, then other VMs of the scope that received it."""
    vms_by_key = {vm.key: vm for vm in context.store.vms(scope_id=event.scope_id, removed=True)}
    acts, notes = {act.vm: act for act in event.acts}, context.control.executor.progress.notes()
    deliveries: dict[str, list[EventDelivery]] = {}
    for delivery in sorted(context.store.deliveries(event_id=event.id), key=lambda s: s.at):
        deliveries.setdefault(delivery.vm, []).append(delivery)

    affected = {vm_key_in_scope(event.scope_id, name): name for name in event.vms}
    for key in dict.fromkeys((*affected, *deliveries)):
        vm = vms_by_key.get(key)
        name = affected.get(key) or (vm.name if vm else key)
        is_known = vm is not None and context.can_see(vm)
        act = acts.get(key)
        note = notes.get(act.id, "") if act is not None else ""
        yield _event_vm(name, key, key in affected, is_known, deliveries.get(key, []), act, note)


def _event_vm(
    name: str, key: str, is_hit: bool, is_known: bool, deliveries: list[EventDelivery], act: Act | None, note: str
) -> EventVmView:
    scheduled = next((s for s in deliveries if s.status == EventState.SCHEDULED), None)
    started = next((s for s in deliveries if s.status == EventState.STARTED), None)
    outcome = act.outcome if act else None
    return EventVmView(
        name=name,
        key=key,
        is_affected=is_hit,
        is_known=is_known,
        delivered_at=timestamp(scheduled.at if scheduled else None),
        version=deliveries[0].version if deliveries else "",
        delivered_as_started_at=timestamp(started.at if started else None),
        verb=act.verb if act else "",
        ok=outcome.ok if outcome else None,
        performed_at=timestamp(outcome.at if outcome else None),
        note=outcome.note if outcome else note,
    )


_CSV_COLUMNS = (
    "vm",
    "affected",
    "delivered_at",
    "version",
    "delivered_as_started_at",
    "act",
    "outcome",
    "performed_at",
    "note",
)


def _csv_row(vm: EventVmView) -> list[object]:
    instants = [
        None if at is None else iso_date(at) for at in (vm.delivered_at, vm.delivered_as_started_at, vm.performed_at)
    ]
    return [
        vm.key,
        "yes" if vm.is_affected else "no",
        instants[0],
        vm.version,
        instants[1],
        vm.verb,
        vm.outcome,
        instants[2],
        vm.note,
    ]
