"""Renders Jinja templates into HTML responses: pages for signed-in users, public pages and errors.

Autoescape is on and undefined variables raise. The template filters for times, durations and links are defined here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from forewarn.base.duration import duration_text
from forewarn.base.wording import scope_name_from_id
from forewarn.core.access import Right
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.core.scope import scope_title_from_id
from forewarn.errors import Unauthenticated
from forewarn.web.context import RequestContext
from forewarn.web.errors import Surface, status_and_message
from forewarn.web.faults import FaultView
from forewarn.web.pipeline import run_request
from forewarn.web.portal.context import FLEET_PATH, PORTAL_PREFIX, CurrentSession, PageAuthenticator, PortalContext
from forewarn.web.portal.navigation import current_page, pages_for
from forewarn.web.portal.states import event_state, state_class, state_element, state_label, vm_state_labels

NO_VALUE = Markup('<span class="none">—</span>')  # in place of a missing value; the cards of a phone leave it out


@cache
def _template_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("forewarn.web.portal", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        instant=_time_element,
        clock=_clock_element,
        day=format_utc,
        span=duration_text,
        segment=_quote_path,
        query_with=_query_string_with,
        percent=_format_percent,
        shorten=_truncate_text,
    )
    environment.filters.update(
        scope_name=scope_name_from_id,
        scope_title=scope_title_from_id,
        state=state_element,
        state_label=state_label,
        state_class=state_class,
        event_state=event_state,
    )
    environment.filters.update(countdown=_countdown_element, elapsed=_elapsed_element, short_ids=_shorten_ids)
    environment.filters.update(grouped=_group_digits, to_time=_format_range, symptom=_symptom_text)
    environment.globals.update(current_page=current_page, vm_state_labels=vm_state_labels, no_value=NO_VALUE)
    environment.globals.update(fleet_path=FLEET_PATH)
    return environment


def render_template(template: str, **values: Any) -> str:
    """Return the rendered text of a template of the portal, which sees `values` as its variables."""
    return _template_environment().get_template(template).render(**values)


def _time_element(at: float | None, near: float | None = None) -> Markup:
    if at is None:
        return NO_VALUE
    when = datetime.fromtimestamp(at, UTC)
    is_near = near is None or when.date() == datetime.fromtimestamp(near, UTC).date()
    date, time = f"{when:%Y-%m-%d}", f"{when:%H:%M:%S}"
    text = time if is_near else f"{when:%d %b} {time}"
    # Numbers only: there is nothing to escape.
    return Markup(f'<time datetime="{date}T{time}Z" data-at="{at:.3f}" title="{date} {time} UTC">{text}</time>')


def _clock_element(at: float) -> Markup:
    """A `<time>` element with date and time in UTC, for POSIX seconds, which portal.js keeps running."""
    when = datetime.fromtimestamp(at, UTC)
    date, time = f"{when:%Y-%m-%d}", f"{when:%H:%M:%S}"
    return Markup(f'<time datetime="{date}T{time}Z">{date} {time}</time>')


def _countdown_element(until: float, now: float, before: str = "", zero: str = "") -> Markup:
    """The time that is left until an instant, such as `14 min 59 s`; detail.js counts it down."""
    return _running_duration("countdown", until, until - now, before, zero)


def _elapsed_element(since: float, now: float, before: str = "", zero: str = "") -> Markup:
    """The time that has passed since an instant, such as `2 min 5 s`; detail.js counts it up."""
    return _running_duration("elapsed", since, now - since, before, zero)


def _running_duration(name: str, at: float, seconds: float, before: str, zero: str) -> Markup:
    text = zero if zero and math.floor(seconds + 0.5) <= 0 else f"{before} {duration_text(seconds)}".lstrip()
    words = {"before": before, "zero": zero}
    attributes = "".join(f' data-{key}="{escape(value)}"' for key, value in words.items() if value)
    return Markup(f'<span class="countdown" data-{name}="{at:.3f}"{attributes}>{escape(text)}</span>')


def _shorten_ids(text: str) -> Markup:
    """Text in which every id of an event or request looks short; all of it stays, to be copied."""
    return Markup(_GUID.sub(r'<code class="id" title="\g<0>">\g<0></code>', str(escape(text))))


_GUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")


def format_utc(at: float) -> str:
    """Return date and time of POSIX seconds, such as `2026-01-05 12:00:00 UTC`, rounded down to seconds."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _format_range(since: float, until: float) -> str:
    first, last = (datetime.fromtimestamp(at, UTC) for at in (since, until))
    end = f"{last:%H:%M:%S}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M:%S}"
    return f"{first:%Y-%m-%d %H:%M:%S} to {end} UTC"


def _group_digits(count: int) -> str:
    """A count with commas, such as `3,000`; fleet.js writes live counts the same way."""
    return f"{count:,}"


def _symptom_text(fault: FaultView) -> str:
    text, others = fault.symptom, []
    for name, value in fault.parameters.items():
        label, amount = name.removesuffix("_s").replace("_", "-"), f"{value:g}{' s' if name.endswith('_s') else ''}"
        if f"if `{label}` is given" not in text and f"`{label}`" in text:
            text = text.replace(f"`{label}`", amount)
        else:
            others.append(f"{label} {amount}")
    added = f" ({', '.join(others)})" if others else ""
    return text.replace("`", "") + added


def _query_string_with(query: Mapping[str, str], **changes: object) -> str:
    merged = {**query, **changes}
    return urlencode({name: value for name, value in merged.items() if value not in (None, "")})


def _format_percent(percent: float) -> Markup:
    """A position or length of an SVG element, such as `41.67%` for 41.6666."""
    return Markup(f"{percent:.2f}%")


def _truncate_text(text: str, max_length: int = 40) -> str:
    """The text, or its beginning and an ellipsis, together `max_length` long: SVG text does not wrap."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def _quote_path(text: str) -> str:
    """A name, percent-encoded for a URL path, with slashes and colons kept: a VM may be named group/name."""
    return quote(text, safe="/:")


SIGN_IN_PATH = f"{PORTAL_PREFIX}/sign-in"
_HTML_MEDIA_TYPE = "text/html; charset=utf-8"
_ERROR_TITLES = {403: "Not allowed", 404: "Not found"}  # by status; any other error is "Not done"


def page_response(
    template: str,
    context: RequestContext,
    session: CurrentSession,
    request: Request,
    *,
    status: int = 200,
    **values: Any,
) -> Response:
    """Return a page for a signed-in user, with header, lab clock and CSRF token, as an HTML response."""
    now, speed, is_lab = context.control.lab_clock.status()

    def may(right: str, over: str = ROOT_RESOURCE) -> bool:
        return context.principal.may(Right(right), over)

    text = render_template(
        template,
        navigation=pages_for(is_cluster=context.dependencies.is_cluster and may(Right.READ)),
        who=context.caller_name,
        token=session.csrf_token,
        path=request.url.path,
        query=dict(request.query_params),
        now=now,
        speed=speed,
        lab=is_lab,
        hold=context.control.rollouts.hold,
        seq=session.history_seq,
        may=may,
        **values,
    )
    return Response(text, status_code=status, media_type=_HTML_MEDIA_TYPE)


def render_hold(context: RequestContext) -> str:
    """Return the banner of every page about the hold on all rollouts, for the user of `context`, as HTML."""
    return render_template(
        "hold.html",
        hold=context.control.rollouts.hold,
        now=context.now(),
        may=lambda right: context.principal.may(Right(right), ROOT_RESOURCE),
    )


def public_page_response(template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page for users who are not signed in, such as the sign-in form, as an HTML response."""
    return Response(render_template(template, **values), status_code=status, media_type=_HTML_MEDIA_TYPE)


async def run_page_request(
    request: Request,
    authenticate: PageAuthenticator,
    answer: Callable[[PortalContext, CurrentSession], Awaitable[Response]],
) -> Response:
    """Return the response of `answer` to a signed-in user; redirect others to sign in. Does not raise."""

    async def handle(caller: tuple[PortalContext, CurrentSession]) -> Response:
        return await answer(*caller)

    def render_error(error: Exception, caller: tuple[PortalContext, CurrentSession] | None) -> Response:
        return _sign_in_redirect(error, request) if caller is None else _error_page_response(error, *caller, request)

    return await run_request(request, authenticate=authenticate, handle=handle, render_error=render_error)


def _error_page_response(
    error: Exception, context: RequestContext, session: CurrentSession, request: Request
) -> Response:
    status, sentence = status_and_message(error, Surface.PORTAL)
    title = _ERROR_TITLES.get(status, "Not done")
    return page_response("error.html", context, session, request, status=status, title=title, sentence=sentence)


def _sign_in_redirect(error: Exception, request: Request) -> Response:
    if isinstance(error, Unauthenticated):
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{SIGN_IN_PATH}?{urlencode({'to': target})}", status_code=303)
    status, sentence = status_and_message(error, Surface.PORTAL)
    return public_page_response("public.html", status=status, title="Not available", sentence=sentence)
