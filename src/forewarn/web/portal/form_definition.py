"""Defines forms: `Form`, its fields, how entered text is parsed, and the fields several forms share.

A form is one call of the API: its fields become members of the request body or parameters of the path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from forewarn.base.duration import duration_text, parse_duration
from forewarn.base.times import Timestamp, parse_time, timestamp
from forewarn.base.wording import first_names
from forewarn.core import lifecycle
from forewarn.core.event import Event, EventState
from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, check_parameters, fault_duration_s, parse_fault_kind
from forewarn.core.planning import pending_platform_events
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.scope import Scope, scope_name
from forewarn.core.waves import rollout_target_text
from forewarn.errors import Refused, Rejected, Remedy
from forewarn.web.context import RequestContext
from forewarn.web.portal.context import PORTAL_PREFIX
from forewarn.web.request_parsing import (
    AdvanceClockBody,
    ClearFaultsBody,
    ClockSpeedBody,
    HandlerCall,
    NewFault,
    NewStorm,
)
from forewarn.web.routing import ApiRoute, ApiRouteTable

# Sentences that say what a form would do, for forms for which the API has no preview route.
#
# A preview changes nothing. It raises the same errors as submitting the form would, as far as they are known
# beforehand: NotFound for unknown names and ids, Refused if several match, Rejected for values that are not valid.

# Describes the effect of a form in sentences. `call` is the API call that the form would make.
PreviewSentences = Callable[[RequestContext, HandlerCall], list[str]]
_MAX_NAMED = 3
_MAX_EVENTS_READ = 20_000


def preview_perform_maintenance(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return sentences that say when the pending maintenance of a VM would start if it were approved now."""
    vm = context.directory.find(call.path_params["name"])
    scope = context.control.transactions.load(vm.scope_id)
    return [
        sentence
        for event in pending_platform_events(scope, vm.name)
        for sentence in _describe_approval(context, scope, event)
    ]


def preview_approve(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one sentence, in a list, that says when an event would start if it were approved now."""
    event = context.find_event(call.path_params["id"])
    if not event.is_live:
        raise Refused(f"event {event.id} is over ({event.ending}): there is nothing to approve")
    if event.status is EventState.STARTED:
        return [f"{_event_title(event)} has already started: an approval changes nothing."]
    return _describe_approval(context, context.control.transactions.load(event.scope_id), event)


def _describe_approval(context: RequestContext, scope: Scope, event: Event) -> list[str]:
    if event.approved_at is not None:
        return [f"{_event_title(event)} is already approved, by {event.approved_by}."]
    if not event.rules.has_impact:
        return [f"{_event_title(event)} never starts: an approval changes nothing."]
    now = context.now()
    wait = start_wait(scope, replace(event, approved_at=now), context.control.transactions.context_for(scope))
    early = f"{duration_text(event.not_before - now)} before its notice ends" if event.not_before > now else "at once"
    if wait is None:
        return [f"{_event_title(event)} starts now, {early}."]
    until = f", for {duration_text(wait.until - now)} at most" if wait.until is not None and wait.until > now else ""
    if wait.reason is WaitReason.GATE:
        return [
            f"{_event_title(event)} is approved and then waits for the other VMs on host {event.host}: "
            "it starts at once if all of them are ready."
        ]
    return [f"{_event_title(event)} is approved and then waits for {wait.text}{until}."]


def preview_withdraw(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one text, in a list: what withdrawing an event would do, and how many VMs received it."""
    event = context.find_event(call.path_params["id"])
    scope = context.control.transactions.load(event.scope_id)
    lifecycle.withdraw(scope, scope.event(event.id) or event, by=context.caller_name, reason="", now=context.now())
    deliveries = context.store.deliveries(event_id=event.id)
    vms = {delivery.vm for delivery in deliveries}
    received = "1 VM has received it" if len(vms) == 1 else f"{len(vms)} VMs have received it"
    delivered_text = received if vms else "no VM has received it yet"
    return [
        f"{_event_title(event)} is withdrawn. It disappears from the document of its VMs ({delivered_text}), "
        "so that handlers can undo their preparations."
    ]


def rollout_change_preview(effect: str) -> PreviewSentences:
    def preview(context: RequestContext, call: HandlerCall) -> list[str]:
        request = context.find_rollout(call.path_params["id"])
        rollout = request.rollout
        assert rollout is not None
        tally = context.control.rollouts.tally_of(request, rollout)
        target = ", ".join(rollout.hosts[:_MAX_NAMED]) if rollout.hosts else rollout_target_text(rollout)
        done = f"{tally.done} of {tally.total} VMs done, {tally.started} started, {tally.scheduled} scheduled"
        return [f"Rollout {request.id[:8]} ({rollout.impact} over {target}): {done}, {tally.waiting} waiting.", effect]

    return preview


def preview_repair_host(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one sentence, in a list: that a host becomes healthy again. Repairs nothing."""
    host = context.control.requests.host(call.path_params["name"])
    return [f"Host {host.name} is {host.health} and becomes healthy: VMs may move to it again."]


def preview_confirm_down(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return three sentences: what it means to confirm that a host is down. Confirms nothing."""
    host = context.control.requests.host(call.path_params["name"])
    vms = len(context.store.vms(host=host.name))
    its_vms = f"its {vms} VM{'' if vms == 1 else 's'}"
    return [
        f"You state that host {host.name} is certainly down: powered off or cut off, so that nothing runs on it.",
        f"The hypervisor may then start {its_vms} on other hosts, without an answer of {host.name}.",
        "This holds until the host is repaired, and the history names you.",
    ]


def preview_fault(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return sentences on which VMs a fault would affect, what their clients would see, and how long."""
    body = call.parse_body(NewFault)
    kind = parse_fault_kind(body.kind)
    definition, duration_s = FAULT_DEFINITIONS[kind], fault_duration_s(kind, body.count, body.duration_s)
    check_parameters(kind, body.parameters)
    if body.vm:
        target = f"VM {context.directory.find(body.vm).name}"
    else:
        target = scope_name(context.find_scope(body.scope)) if body.scope else "all VMs"
    counted = "requests" if definition.category is FaultCategory.TRANSPORT else "events"
    sentences = [f"{kind} for {target}. Clients see: {definition.symptom.replace('`', '')}."]
    if definition.category is FaultCategory.AT_ONCE:
        return [*sentences, "It happens once, immediately."]
    parts = [f"the next {body.count} {counted}"] if body.count else []
    if duration_s:
        which = "real" if definition.category is FaultCategory.TRANSPORT else "lab"
        parts.append(f"{duration_text(duration_s)} of {which} time")
    return [*sentences, f"It lasts for {' or '.join(parts)}." if parts else "It lasts until you clear it."]


def preview_clear_faults(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one text, in a list: which faults and storms the body of the call would clear."""
    body = call.parse_body(ClearFaultsBody)
    active = context.control.faults.active
    if body.all and not (body.ids or body.kind or body.vm or body.scope):
        return [f"All {len(active.faults)} faults and {len(active.storms)} storms are cleared."]
    parts = [*(f"of kind {body.kind}" for _ in body.kind[:1]), *(f"for {body.vm}" for _ in body.vm[:1])]
    named = ", ".join(body.ids) if body.ids else "faults"
    return [f"This clears {named} {' '.join(parts)}".strip() + ". Faults that a cleared storm has set stay."]


def preview_storm(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one sentence, in a list: which VMs a fault storm would affect, for how long, and its seed."""
    body = call.parse_body(NewStorm)
    vms = [context.directory.find(name).name for name in body.vms]
    target = first_names(vms, _MAX_NAMED) or "all VMs"
    return [f"Faults affect {target} for {duration_text(body.duration_s)} of lab time, with seed {body.seed}."]


def preview_stop_replay(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one text, in a list: after how many of its steps a replay would end, and what follows."""
    replay = context.control.replays.find(call.path_params["id"]).replay
    assert replay is not None
    return [
        f"The replay for {replay.name} ends after {replay.done} of {replay.steps} steps. Its scope receives its own "
        "document again."
    ]


def preview_advance_clock(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return sentences on how far lab time would advance, and how many visible notices end by then."""
    context.control.lab_clock.require_lab_clock("advanced")
    by_s = call.parse_body(AdvanceClockBody).by_s
    until = context.now() + by_s
    scheduled = context.store.events(statuses=[EventState.SCHEDULED], limit=_MAX_EVENTS_READ)
    due = [event for event in scheduled if event.not_before <= until and context.can_see_scope(event.scope_id)]
    sentences = [f"Lab time advances by {duration_text(by_s)}."]
    if not due:
        return [*sentences, "No event's notice ends on the way."]
    first = first_names([_event_title(event) for event in due], _MAX_NAMED)
    return [*sentences, f"The notice of {len(due)} event{'s' if len(due) > 1 else ''} ends on the way: {first}."]


def preview_clock_speed(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one sentence, in a list, that says how fast lab time would run, or that it would pause."""
    context.control.lab_clock.require_lab_clock("set to another speed")
    speed = call.parse_body(ClockSpeedBody).speed
    if speed == 0:
        return ["Lab time is paused until you set another speed or advance it."]
    return [
        "Lab time runs as fast as real time." if speed == 1 else f"Lab time runs {speed:g} times as fast as real time."
    ]


def _event_title(event: Event) -> str:
    return f"{event.rules.kind or event.rules.verb} of {first_names(event.vms, _MAX_NAMED)}"


FormValues = Mapping[str, Sequence[str]]  # the entered texts of a form, by field name
_NAME_SEPARATORS = re.compile(r"[,\n]")  # not spaces: a name may contain them
FREE_TEXT_SUFFIX = "_more"  # of the text input beside check boxes, which takes several names


class FieldKind(StrEnum):
    """What a form field holds; it decides how the field is shown and parsed."""

    VMS = "vms"  # names or keys
    VM = "vm"  # a name or key
    HOSTS = "hosts"  # names
    HOST = "host"  # a name
    IDS = "things"  # of faults and storms
    SCOPE = "scope"  # its name or id
    ID = "thing"  # of an event, a rollout or a replay
    DURATION = "duration"  # such as 15m; parsed to seconds
    INSTANT = "instant"  # ISO 8601, UTC without an offset; parsed to a Timestamp
    NUMBER = "number"  # parsed to an int if it is whole, else to a float
    CHECK = "check"  # parsed to True, or None if it is not checked
    CHOICE = "choice"  # one of the field's `choices`
    TEXT = "text"


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a form: how it is shown, and where its value goes in the call of the API."""

    name: str  # in the submitted form
    kind: FieldKind
    label: str  # the text beside the field
    hint: str = ""  # text below the field
    body_member: str = ""  # name in the JSON body; `a.b` is member b of the object a; "": not in the body
    path_parameter: str = ""  # name in the path of the API route; "": not in the path
    default: str = ""  # what a new form shows in it
    choices: tuple[tuple[str, str], ...] = ()  # value and text of each, for the kind CHOICE
    is_required: bool = False  # the API rejects a call without it; the form itself does not check that
    fault_kind: str = ""  # the only kind of fault that has this parameter; "" for other fields

    def parse(self, values: FormValues) -> Any:
        """Return the value of this field for the API, from the texts of the whole form; None if it is empty."""
        return _PARSERS[self.kind](self, self.entered_texts(values))

    def entered_texts(self, values: FormValues) -> list[str]:
        """Return the chosen texts of this field, then the typed ones, stripped, without empty ones."""
        free_texts = [
            part for line in values.get(f"{self.name}{FREE_TEXT_SUFFIX}", ()) for part in _NAME_SEPARATORS.split(line)
        ]
        return [text.strip() for text in (*values.get(self.name, ()), *free_texts) if text.strip()]


def _parse_names(field: FormField, texts: Sequence[str]) -> list[str] | None:
    return list(dict.fromkeys(texts)) or None


def _parse_text(field: FormField, texts: Sequence[str]) -> str | None:
    return texts[-1] if texts else None


def _parse_duration(field: FormField, texts: Sequence[str]) -> float | None:
    if not texts:
        return None
    try:
        return parse_duration(texts[-1])
    except ValueError as error:
        raise Rejected(str(error)) from None


def _parse_instant(field: FormField, texts: Sequence[str]) -> Timestamp | None:
    if not texts:
        return None
    try:
        return timestamp(parse_time(texts[-1]))
    except ValueError as error:
        raise Rejected(str(error)) from None


def _parse_number(field: FormField, texts: Sequence[str]) -> float | int | None:
    if not texts:
        return None
    try:
        number = float(texts[-1])
    except ValueError:
        number = float("nan")
    if not abs(number) < 2**53:
        raise Rejected(f"{texts[-1]!r} is not a number: write one such as {field.default or 1}")
    return int(number) if number == int(number) else number


def _parse_check(field: FormField, texts: Sequence[str]) -> bool | None:
    return True if texts else None


_PARSERS: dict[FieldKind, Callable[[FormField, Sequence[str]], Any]] = {
    FieldKind.VMS: _parse_names,
    FieldKind.VM: _parse_text,
    FieldKind.HOSTS: _parse_names,
    FieldKind.IDS: _parse_names,
    FieldKind.HOST: _parse_text,
    FieldKind.SCOPE: _parse_text,
    FieldKind.ID: _parse_text,
    FieldKind.DURATION: _parse_duration,
    FieldKind.INSTANT: _parse_instant,
    FieldKind.NUMBER: _parse_number,
    FieldKind.CHECK: _parse_check,
    FieldKind.CHOICE: _parse_text,
    FieldKind.TEXT: _parse_text,
}

# Members of the body that the fields alone do not give. Raises Rejected for values that contradict each other.
ExtraBody = Callable[[RequestContext, FormValues], dict[str, Any]]
ResultUrl = Callable[[Any], str]  # the page that shows the result, from the response of the API's handler


def _no_extra_body(context: RequestContext, values: FormValues) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One form of the portal, which makes one call of the API: its texts, fields, route and preview."""

    name: str  # in its URL
    title: str  # the heading of its page
    button: str  # the label with which the user confirms it
    description: str  # what it does, shown above the fields
    route: str  # of the API, such as `POST /requests`
    done_message: str  # shown on the page that follows, if that page shows messages
    result_url: ResultUrl  # returns the path of the page that follows, from what the API's handler returned
    fields: tuple[FormField, ...] = ()
    fixed_body: Mapping[str, Any] = field(default_factory=dict)  # body members that no field sets
    extra_body: ExtraBody = _no_extra_body  # more body members, from all values together
    preview: PreviewSentences | str = ""  # required: a function that describes the effect, or the path of an API route
    danger: str = ""  # a sentence: what is lost and cannot be undone; its buttons are red. "": nothing is lost
    confirms_directly: bool = False  # a link that fills in a field skips to the confirmation

    def api_route(self, routes: ApiRouteTable) -> ApiRoute:
        """Return the route of the API that this form calls; KeyError if `routes` does not have it."""
        method, _, path = self.route.partition(" ")
        return routes[method, path]

    def preview_route(self, routes: ApiRouteTable) -> ApiRoute | None:
        """Return the route of the API that previews this form; None if `preview` is a function."""
        return routes["POST", self.preview] if isinstance(self.preview, str) else None


def request_url(response: Any) -> str:
    """Return the path of the page of a request; `response` is the API's receipt for the request."""
    return f"{PORTAL_PREFIX}/requests/{response.request.id}"


def rollout_url(response: Any) -> str:
    """Return the path of the page of a rollout; `response` is the rollout that the API's handler returned."""
    return f"{PORTAL_PREFIX}/rollouts/{response.id}"


def event_url(response: Any) -> str:
    """Return the path of the page of an event; `response` is the event that the API's handler returned."""
    return f"{PORTAL_PREFIX}/events/{response.id}"


def first_event_url(response: Any) -> str:
    """Return the path of the page of the first of `response.events`; IndexError if there are none."""
    return f"{PORTAL_PREFIX}/events/{response.events[0].id}"


def host_url(response: Any) -> str:
    """Return the path of the page of a host; `response` is the host that the API's handler returned."""
    return f"{PORTAL_PREFIX}/hosts/{quote(response.name, safe='')}"


def lab_url(response: Any) -> str:
    """Return the path of the lab page. `response` is not used."""
    return f"{PORTAL_PREFIX}/lab"


def clock_report_url(response: Any) -> str:
    """Return the path of the lab page with a report of what happened while the clock was advanced."""
    if not response.entries:
        return f"{PORTAL_PREFIX}/lab?after=0&until=0"
    after = max(0, response.entries[0].seq - 1 - response.entries_omitted)
    return f"{PORTAL_PREFIX}/lab?after={after}&until={response.entries[-1].seq}"


# Fields that several forms share.
NOTICE_FIELD = FormField(
    name="notice",
    kind=FieldKind.DURATION,
    label="Notice",
    hint="Such as 20m or 7d. Empty: the minimum for this kind of event.",
    body_member="notice_s",
)
SHORT_NOTICE_FIELD = FormField(
    name="short_notice",
    kind=FieldKind.CHECK,
    label="Allow a shorter notice (testing only)",
    hint="Azure never gives less than the minimum. With this, handlers have only the notice entered above.",
    body_member="short_notice",
)
SCOPE_FIELD = FormField(
    name="scope",
    kind=FieldKind.SCOPE,
    label="Scope",
    body_member="scope",
    hint="Name or id of an availability set, a placement group, a cloud service or a standalone VM.",
)


def require_notice_length(context: RequestContext, values: FormValues) -> dict[str, Any]:
    """Raise Rejected if the form allows a shorter notice but leaves the notice empty; else return {}."""
    if SHORT_NOTICE_FIELD.parse(values) and NOTICE_FIELD.parse(values) is None:
        raise Rejected("a short notice needs a length", Remedy.GIVE_NOTICE)
    return {}
