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

from forewarn.base.duration import parse_duration
from forewarn.base.times import Timestamp, parse_time, timestamp
from forewarn.errors import Rejected, Remedy
from forewarn.web.context import RequestContext
from forewarn.web.portal.context import PORTAL_PREFIX
from forewarn.web.portal.form_previews import PreviewSentences
from forewarn.web.routing import ApiRoute, ApiRouteTable

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
