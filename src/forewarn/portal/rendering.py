"""Renders Jinja templates into HTML responses: pages for signed-in users, public pages and errors.

Autoescape is on and undefined variables raise. The template filters for times, durations and links are defined here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from forewarn.core.access import Right
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import Unauthenticated
from forewarn.explain.phrases import duration_text
from forewarn.portal.context import PORTAL_PREFIX, CurrentSession
from forewarn.web.context import RequestContext
from forewarn.web.errors import status_and_message
from forewarn.web.remedies import Surface
from forewarn.web.view_builder import scope_title_from_id


@cache
def template_environment() -> Environment:
    made = Environment(
        loader=PackageLoader("forewarn.portal", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        instant=time_element,
        day=format_utc,
        span=duration_text,
        segment=quote_path,
        but=query_string_with,
        percent=format_percent,
        shorten=truncate_text,
    )
    made.filters.update(title_of_scope=scope_title_from_id)
    return made


def render_template(template: str, **given: Any) -> str:
    return template_environment().get_template(template).render(**given)


def time_element(at: float | None, near: float | None = None) -> Markup:
    """A time of day that scripts can turn into the reader's own; a dash where there is none. With the day, where that
    is another than the day of `near`.
    """
    if at is None:
        return Markup("—")
    when = datetime.fromtimestamp(at, UTC)
    is_near = near is None or when.date() == datetime.fromtimestamp(near, UTC).date()
    date, time = f"{when:%Y-%m-%d}", f"{when:%H:%M:%S}"
    text = time if is_near else f"{when:%d %b} {time}"
    # Numbers only: there is nothing to escape.
    return Markup(f'<time datetime="{date}T{time}Z" data-at="{at:.3f}" title="{date} {time} UTC">{text}</time>')


def format_utc(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def query_string_with(query: Mapping[str, str], **changes: object) -> str:
    """This page's query with some of it changed; what is None or empty is left out."""
    wanted = {**query, **changes}
    return urlencode({name: value for name, value in wanted.items() if value not in (None, "")})


def format_percent(share: float) -> Markup:
    """Where something stands in a drawing of any width."""
    return Markup(f"{share:.2f}%")


def truncate_text(text: str, most: int = 40) -> str:
    """For drawings, which cannot break lines."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quote_path(text: str) -> str:
    """A name within a path: its slashes stay, since a VM may be called group/name."""
    return quote(text, safe="/:")


SIGN_IN_PATH = f"{PORTAL_PREFIX}/sign-in"
_HTML_MEDIA_TYPE = "text/html; charset=utf-8"
_ERROR_TITLES = {403: "Not allowed", 404: "Not found"}  # the titles of those that are no deed undone


def page_response(
    template: str, context: RequestContext, visit: CurrentSession, request: Request, *, status: int = 200, **given: Any
) -> Response:
    """A page for somebody who is signed in."""
    now, speed, lab = context.control.lab_clock.status()

    def may(right: str, over: str = ROOT_RESOURCE) -> bool:
        return context.principal.may(Right(right), over)

    text = render_template(
        template,
        who=context.caller_name,
        token=visit.csrf_token,
        path=request.url.path,
        query=dict(request.query_params),
        now=now,
        speed=speed,
        lab=lab,
        seq=visit.history_seq,
        may=may,
        **given,
    )
    return Response(text, status_code=status, media_type=_HTML_MEDIA_TYPE)


def public_page_response(template: str, *, status: int = 200, **given: Any) -> Response:
    """A page for somebody who is not signed in."""
    return Response(render_template(template, **given), status_code=status, media_type=_HTML_MEDIA_TYPE)


def error_page_response(error: Exception, context: RequestContext, visit: CurrentSession, request: Request) -> Response:
    status, sentence = status_and_message(error, Surface.PORTAL)
    title = _ERROR_TITLES.get(status, "Not done")
    return page_response("error.html", context, visit, request, status=status, title=title, sentence=sentence)


def sign_in_redirect(error: Exception, request: Request) -> Response:
    """To the page where one signs in, and from there back; where that would not help, why."""
    if isinstance(error, Unauthenticated):
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{SIGN_IN_PATH}?{urlencode({'to': target})}", status_code=303)
    status, sentence = status_and_message(error, Surface.PORTAL)
    return public_page_response("public.html", status=status, title="Not now", sentence=sentence)
