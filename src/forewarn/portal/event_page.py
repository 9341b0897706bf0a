"""The page of one event: facts, affected VMs, explanation, and the document in every api-version.

The documents are encoded as the metadata endpoint sends them. Documents of the past are not stored, so an event
that is over is shown alone, in its last form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from forewarn.core.access import Right
from forewarn.core.event import Act, Event, EventState
from forewarn.core.fleet import vm_key_in_scope
from forewarn.core.history import EventDelivery
from forewarn.core.projection import document_for, wire_notice
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.core.scope import Scope, enable_scope
from forewarn.explain.explanation import Explanation
from forewarn.portal.export import ExportTable
from forewarn.portal.timeline_chart import (
    LEGEND,
    EventRow,
    TimelineChart,
    TimeWindow,
    build_chart,
    event_row_for,
    format_iso,
    render_standalone_svg,
)
from forewarn.protocol.codec import encode_document
from forewarn.protocol.document import Document, Kind
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.versions import version_lists_kind
from forewarn.web.context import RequestContext
from forewarn.web.explanations import explain_event
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.routing import named_event
from forewarn.web.view_builder import ViewBuilder
from forewarn.web.views import BaseView, EventView


class VersionRendering(BaseView, frozen=True, kw_only=True):
    """What one version says."""

    version: str
    text: str  # as it is sent; "": nothing
    hidden: str  # why the event is not in it; "": it is

    @property
    def pretty_json(self) -> str:
        return json.dumps(json.loads(self.text), indent=2) if self.text else ""


class WireView(BaseView, frozen=True, kw_only=True):
    is_shown: bool  # by a document, now
    told: str  # a sentence about what follows
    versions: tuple[VersionRendering, ...]  # newest first


_SHOWN_NOW = "This is what every VM of the scope is given now, in each api-version, byte for byte."
_SHOWN_ON_FIRST_POLL = (
    "Nobody of the scope asks for events, so nobody is told. This is what the first VM that asks will be given, "
    "in each api-version, byte for byte."
)
_NO_LONGER_SHOWN = (
    "No document shows it any more. From the record, this is the form in which it was last shown; the documents of "
    "that time are not kept, so neither their incarnation nor their other events can be told."
)


def wire_view(event: Event, scope: Scope | None, rules_for: Callable[[str], EndpointRules]) -> WireView:
    kind = event.rules.kind
    if kind is None or not event.listed:
        told = "No document ever showed it: it was carried out at once, without an event."
        return WireView(is_shown=False, told=told, versions=())
    rules = rules_for(scope.present_vms[0].location if scope is not None and scope.present_vms else "")
    if event.is_live and scope is not None:
        # Who asks first enables the scope, and is given what is pending.
        asked = enable_scope(scope, by="", now=0.0)
        told = _SHOWN_NOW if scope.is_enabled else _SHOWN_ON_FIRST_POLL
        return WireView(is_shown=True, told=told, versions=_renderings(document_for(asked), kind, rules))
    return WireView(is_shown=False, told=_NO_LONGER_SHOWN, versions=_last_renderings(event, kind, rules))


def _renderings(document: Document, kind: Kind, rules: EndpointRules) -> tuple[VersionRendering, ...]:
    return tuple(
        VersionRendering(
            version=version, text=_encode_text(document, version, rules), hidden=_hidden_reason(version, kind)
        )
        for version in reversed(rules.versions)
    )


def _last_renderings(event: Event, kind: Kind, rules: EndpointRules) -> tuple[VersionRendering, ...]:
    """The event alone, Started if it ever was."""
    status = EventState.SCHEDULED if event.started_at is None else EventState.STARTED
    roles = event.scope_id.startswith("service:")
    alone = Document(incarnation=0, notices=(wire_notice(replace(event, status=status)),), roles=roles)
    return tuple(
        VersionRendering(
            version=version, text=_event_json(_encode_text(alone, version, rules)), hidden=_hidden_reason(version, kind)
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
    return f"{version} does not show a {kind}: a VM that asks with it is not told of this event."


_MAX_VMS = 500
_WINDOW_MARGIN = 0.06  # of the bar, on either side
_MIN_WINDOW_S = 60.0


class EventVmView(BaseView, frozen=True, kw_only=True):
    """What the event was and is to one VM."""

    name: str
    key: str
    is_hit: bool  # else only told, as a member of the scope
    is_known: bool  # whether the visitor may look at it
    given_at: float | None  # as Scheduled, for the first time
    version: str  # it was first given in
    given_started_at: float | None
    verb: str  # of its act; "": none is owed yet
    ok: bool | None
    performed_at: float | None
    note: str

    @property
    def outcome(self) -> str:
        if not self.verb:
            return ""
        return {None: "under way", True: "performed", False: "failed"}[self.ok]


class EventPage(BaseView, frozen=True, kw_only=True):
    now: float
    event: EventView
    lane: EventRow
    faults: tuple[str, ...]  # that touched it, for those who may know
    gate: str  # how it starts with others; "": by itself
    request_path: str  # "": not for the visitor to see
    vms: tuple[EventVmView, ...]
    more_vms: int
    story: Explanation
    wire: WireView
    may_approve: bool
    may_withdraw: bool

    def chart(self) -> TimelineChart:
        return build_chart([self.lane], _chart_window(self.lane, self.now), self.now, banded=False)

    def svg(self) -> str:
        return render_standalone_svg(build_chart([self.lane], _chart_window(self.lane, self.now), self.now))

    def table(self) -> ExportTable:
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(vm) for vm in self.vms])

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        return LEGEND


async def show_event_page(context: RequestContext, call: HandlerCall) -> EventPage:
    """An event, by its id or the beginning of it."""
    await context.dependencies.flush_observations()
    event = context.find_event(call.path_params["id"])
    showing = ViewBuilder(context)
    vms = list(_event_vms(context, event))
    is_open = event.status is EventState.SCHEDULED
    return EventPage(
        now=context.now(),
        event=showing.event(event),
        lane=event_row_for(showing, event),
        faults=event.faults if context.can_see_everything() else (),
        gate=_gate_text(context, event),
        request_path=_request_url(context, event),
        vms=tuple(vms[:_MAX_VMS]),
        more_vms=max(0, len(vms) - _MAX_VMS),
        story=explain_event(context, event),
        wire=wire_view(event, showing.load_scope(event.scope_id), context.dependencies.rules_for),
        may_approve=is_open and event.approved_at is None and _may_approve(context, event),
        may_withdraw=is_open and context.principal.may(Right.PLATFORM, ROOT_RESOURCE),
    )


def _may_approve(context: RequestContext, event: Event) -> bool:
    return context.principal.may_all(Right.APPROVE, named_event(context, HandlerCall(path_params={"id": event.id})))


def _gate_text(context: RequestContext, event: Event) -> str:
    gate = context.store.gate(event.gate_id) if event.gate_id else None
    if gate is None:
        return ""
    opened = "the gate is closed" if gate.released_at is None else f"the gate opened at {format_iso(gate.released_at)}"
    return f"together with whatever else is on host {gate.host}; {opened}"


def _request_url(context: RequestContext, event: Event) -> str:
    request = context.store.request(event.request_id)
    if request is None or not context.visibility.can_see_request(request):
        return ""
    return f"/portal/{'rollouts' if request.rollout is not None else 'requests'}/{request.id}"


def _event_vms(context: RequestContext, event: Event) -> Iterator[EventVmView]:
    """Those that it hits, then those of the scope that were told of it only."""
    there = {vm.key: vm for vm in context.store.vms(scope_id=event.scope_id, removed=True)}
    acts = {act.vm: act for act in event.acts}
    seen: dict[str, list[EventDelivery]] = {}
    for sighting in sorted(context.store.deliveries(event_id=event.id), key=lambda s: s.at):
        seen.setdefault(sighting.vm, []).append(sighting)

    hit = {vm_key_in_scope(event.scope_id, name): name for name in event.vms}
    for key in dict.fromkeys((*hit, *seen)):
        vm = there.get(key)
        name = hit.get(key) or (vm.name if vm else key)
        is_known = vm is not None and context.can_see(vm)
        yield _event_vm(name, key, key in hit, is_known, seen.get(key, []), acts.get(key))


def _event_vm(
    name: str, key: str, is_hit: bool, is_known: bool, seen: list[EventDelivery], act: Act | None
) -> EventVmView:
    given = next((s for s in seen if s.status == EventState.SCHEDULED), None)
    started = next((s for s in seen if s.status == EventState.STARTED), None)
    outcome = act.outcome if act else None
    return EventVmView(
        name=name,
        key=key,
        is_hit=is_hit,
        is_known=is_known,
        given_at=given.at if given else None,
        version=seen[0].version if seen else "",
        given_started_at=started.at if started else None,
        verb=act.verb if act else "",
        ok=outcome.ok if outcome else None,
        performed_at=outcome.at if outcome else None,
        note=outcome.note if outcome else "",
    )


def _chart_window(lane: EventRow, now: float) -> TimeWindow:
    until = max(lane.ends_at(now), lane.not_before)
    margin = max((until - lane.published_at) * _WINDOW_MARGIN, _MIN_WINDOW_S / 2)
    return TimeWindow(since=lane.published_at - margin, until=until + margin)


_CSV_COLUMNS = ("vm", "hit", "given_at", "version", "given_as_started_at", "act", "outcome", "performed_at", "note")


def _csv_row(vm: EventVmView) -> list[object]:
    instants = [None if at is None else format_iso(at) for at in (vm.given_at, vm.given_started_at, vm.performed_at)]
    return [
        vm.key,
        "yes" if vm.is_hit else "no",
        instants[0],
        vm.version,
        instants[1],
        vm.verb,
        vm.outcome,
        instants[2],
        vm.note,
    ]
