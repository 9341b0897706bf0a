"""Defines forms: `Form`, its fields, how entered text is parsed, and the fields several forms share.

A form is one call of the API: its fields become members of the request body or parameters of the path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

from forewarn.duration import parse_duration
from forewarn.errors import Rejected
from forewarn.portal.context import PORTAL_PREFIX
from forewarn.portal.form_previews import PreviewSentences
from forewarn.web.context import RequestContext
from forewarn.web.routing import ApiRoute, ApiRouteTable

FormValues = Mapping[str, Sequence[str]]  # what stands in a form, by the names of its fields
_NAME_SEPARATORS = re.compile(r"[,\n]")  # not blanks: a name may hold some
FREE_TEXT_SUFFIX = "_more"  # ends the name of the line into which people write several


class FieldKind(StrEnum):
    VMS = "vms"
    VM = "vm"
    HOSTS = "hosts"
    HOST = "host"
    IDS = "things"  # by their ids
    SCOPE = "scope"
    ID = "thing"  # an event, a rollout, a fault: by its id
    DURATION = "duration"
    INSTANT = "instant"  # UTC
    NUMBER = "number"
    CHECK = "check"
    CHOICE = "choice"
    TEXT = "text"


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: FieldKind
    label: str
    hint: str = ""
    body_member: str = ""  # of the body; with a dot, of an object in it
    path_parameter: str = ""  # the part of the route's path that it is
    default: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # what is sent, and how people read it
    is_required: bool = False
    fault_kind: str = ""  # the kind of fault that has it

    def parse(self, typed: FormValues) -> Any:
        """The value; None where nothing was typed."""
        return _PARSERS[self.kind](self, self.entered_texts(typed))

    def entered_texts(self, typed: FormValues) -> list[str]:
        """What was chosen or typed for it, one by one."""
        several = [
            word for line in typed.get(f"{self.name}{FREE_TEXT_SUFFIX}", ()) for word in _NAME_SEPARATORS.split(line)
        ]
        return [text.strip() for text in (*typed.get(self.name, ()), *several) if text.strip()]


def _parse_names(field: FormField, texts: Sequence[str]) -> list[str] | None:
    """Names, each once."""
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


def _parse_instant(field: FormField, texts: Sequence[str]) -> float | None:
    if not texts:
        return None
    try:
        when = datetime.fromisoformat(texts[-1])
    except ValueError:
        raise Rejected(f"{texts[-1]!r} is no time: write it like 2026-01-05T12:30") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _parse_number(field: FormField, texts: Sequence[str]) -> float | int | None:
    if not texts:
        return None
    try:
        number = float(texts[-1])
    except ValueError:
        number = float("nan")
    if not abs(number) < 2**53:
        raise Rejected(f"{texts[-1]!r} is no number: write one such as {field.default or 1}")
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

ExtraBody = Callable[[RequestContext, FormValues], dict[str, Any]]  # what the fields alone do not say
ResultUrl = Callable[[Any], str]  # from the API's answer to where one sees what came of it


def _no_extra_body(context: RequestContext, typed: FormValues) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    name: str
    title: str
    button: str
    description: str
    route: str  # of the API, such as `POST /requests`
    done_message: str  # what has happened once it is sent
    result_url: ResultUrl
    fields: tuple[FormField, ...] = ()
    fixed_body: Mapping[str, Any] = field(default_factory=dict)  # members of the body that nobody is asked for
    extra_body: ExtraBody = _no_extra_body
    preview: PreviewSentences | str = ""  # what would happen: told by this, or by this route of the API
    is_destructive: bool = False
    confirms_directly: bool = False  # a link that fills it in leads straight to what will happen

    def api_route(self, routes: ApiRouteTable) -> ApiRoute:
        """The route of the API that the form is sent to."""
        method, _, path = self.route.partition(" ")
        return routes[method, path]

    def preview_route(self, routes: ApiRouteTable) -> ApiRoute | None:
        """The route of the API that tells what would happen; None: `foresight` tells it."""
        return routes["POST", self.preview] if isinstance(self.preview, str) else None


def request_url(answer: Any) -> str:
    return f"{PORTAL_PREFIX}/requests/{answer.request.id}"


def rollout_url(answer: Any) -> str:
    return f"{PORTAL_PREFIX}/rollouts/{answer.id}"


def event_url(answer: Any) -> str:
    return f"{PORTAL_PREFIX}/events/{answer.id}"


def first_event_url(answer: Any) -> str:
    return f"{PORTAL_PREFIX}/events/{answer.events[0].id}"


def host_url(answer: Any) -> str:
    return f"{PORTAL_PREFIX}/hosts/{quote(answer.name, safe='')}"


def lab_url(answer: Any) -> str:
    return f"{PORTAL_PREFIX}/lab"


NOTICE_FIELD = FormField(
    name="notice",
    kind=FieldKind.DURATION,
    label="Notice",
    hint="Such as 20m or 7d. Left empty, it is the minimum of its kind.",
    body_member="notice_s",
)
SHORT_NOTICE_FIELD = FormField(
    name="short_notice",
    kind=FieldKind.CHECK,
    label="Less than the minimum, to rehearse",
    hint="Azure never promises less. A rehearsal may (--short-notice): handlers then have only the notice named above.",
    body_member="short_notice",
)
SCOPE_FIELD = FormField(
    name="scope",
    kind=FieldKind.SCOPE,
    label="Scope",
    body_member="scope",
    hint="A set, a placement group, a cloud service or a standalone VM, by its name or id.",
)


def require_notice_length(context: RequestContext, typed: FormValues) -> dict[str, Any]:
    if SHORT_NOTICE_FIELD.parse(typed) and NOTICE_FIELD.parse(typed) is None:
        raise Rejected("a short notice needs a length: say how long with --notice")
    return {}
