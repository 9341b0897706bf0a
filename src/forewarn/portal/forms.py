"""Where people ask for things: a form, what would happen, and then it happens.

What is sent goes through the handlers of the API, so that one place decides who may, and refuses in one wording.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from forewarn.console.call import Call
from forewarn.console.over import everything
from forewarn.console.portal.confirmation import confirmation
from forewarn.console.portal.context import EnterPortal, PortalContext
from forewarn.console.portal.field import Typed
from forewarn.console.portal.formline import Form
from forewarn.console.portal.forms import FORMS
from forewarn.console.portal.frame import framed, not_let_in, refused
from forewarn.console.portal.guard import must_repeat
from forewarn.console.portal.offer import page_of
from forewarn.console.portal.page import PREFIX
from forewarn.console.portal.slip import Slips
from forewarn.console.portal.visit import Visit
from forewarn.console.reading import read_whole
from forewarn.console.refusal import outcome_of
from forewarn.core.resource import EVERYTHING
from forewarn.errors import Conflict, NotFound, Rejected, Unavailable

_LONGEST = 2 * 1024 * 1024  # ten thousand VMs by their keys
_MOST_FIELDS = 20_000
_TYPE = "application/x-www-form-urlencoded"
_OURS = ("token", "confirmed", "slip", "again")  # fields of every form
_FORGOTTEN = "This confirmation is not known any more, and nothing was done: look again what will happen, and confirm."
_DONE_THERE = ("/requests/", "/rollouts/", "/lab")  # pages that say what was just done


def form_routes(enter: EnterPortal) -> list[BaseRoute]:
    slips = Slips()

    async def endpoint(request: Request) -> Response:
        try:
            room, visit = await enter(request)
        except Exception as error:
            return not_let_in(error, request)
        try:
            sending = _Sending(room, visit, request, _form(request.path_params["name"]), slips)
            return await (sending.answer() if request.method == "POST" else sending.open())
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is left to read it
        except Exception as error:
            return refused(error, room, visit, request)

    return [Route(f"{PREFIX}/forms/{{name}}", endpoint, methods=["GET", "POST"])]


def _form(name: str) -> Form:
    form = FORMS.get(name)
    if form is None:
        raise NotFound(f"there is no form {name!r}: start at the fleet")
    return form


def _must_somewhere(room: PortalContext, form: Form) -> None:
    """Whoever may do this nowhere is told so before they fill in anything."""
    line = form.api_route(room.api_routes)
    if line.over is everything:
        room.must(line.right, EVERYTHING)
    elif not room.principal.may_somewhere(line.right):
        raise room.lacking(line.right, "anything")


def _queried(request: Request) -> Typed:
    typed: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        typed.setdefault(name, []).append(value)
    return typed


def _shown(
    room: PortalContext, visit: Visit, request: Request, form: Form, typed: Typed, error: Exception | None = None
) -> Response:
    """The form, with what was typed, and why that was refused."""
    status, sentence = (200, "") if error is None else outcome_of(error)
    return framed("form.html", room, visit, request, status=status, page=page_of(room, form, typed, sentence))


class _Sending:
    """One form, opened or sent: to see what would happen, or to have it happen."""

    def __init__(self, room: PortalContext, visit: Visit, request: Request, form: Form, slips: Slips) -> None:
        self._room = room
        self._visit = visit
        self._request = request
        self._form = form
        self._slips = slips

    async def open(self) -> Response:
        """The form; where a link says all that it asks for, what will happen."""
        form, typed = self._form, _queried(self._request)
        _must_somewhere(self._room, form)
        if not form.is_short or not any(field.name in typed for field in form.fields):
            return _shown(self._room, self._visit, self._request, form, typed)
        try:
            return await self._ask_back(typed)
        except (Rejected, Conflict, Unavailable) as error:
            return _shown(self._room, self._visit, self._request, form, typed, error)

    async def answer(self) -> Response:
        fields = await _read(self._request)
        must_repeat(self._visit, self._request.headers, fields)
        _must_somewhere(self._room, self._form)
        typed = {name: values for name, values in fields.items() if name not in _OURS}
        if "again" in fields:
            return _shown(self._room, self._visit, self._request, self._form, typed)
        try:
            if "yes" not in fields.get("confirmed", ()):
                return await self._ask_back(typed)
            return await self._do(typed, (fields.get("slip") or [""])[0])
        except (Rejected, Conflict, Unavailable) as error:
            return _shown(self._room, self._visit, self._request, self._form, typed, error)

    async def _ask_back(self, typed: Typed, note: str = "") -> Response:
        call = self._call(typed)
        slip = self._slips.new(self._whose)
        page = await confirmation(self._room, self._form, call, typed, slip, note)
        return framed("confirm.html", self._room, self._visit, self._request, page=page)

    async def _do(self, typed: Typed, slip: str) -> Response:
        if slip and not self._slips.knows(self._whose, slip):
            return await self._ask_back(typed, _FORGOTTEN)

        async def deed() -> str:
            call, line = self._call(typed), self._form.api_route(self._room.api_routes)
            return _led_to(self._form, await line.handler(self._room, call, **line.signature.read(call)))

        where = await self._slips.once(self._whose, slip or self._slips.new(self._whose), deed)
        return RedirectResponse(where, status_code=303)

    def _call(self, typed: Typed) -> Call:
        """The call of the API that this form is, by somebody who may make it."""
        form, line = self._form, self._form.api_route(self._room.api_routes)
        names = {f.in_path: _needed(f.label, f.read(typed)) for f in form.fields if f.in_path}
        body = {**form.fixed, **_members(form, typed), **form.body(self._room, typed)}
        call = Call(names=names, body=msgspec.json.encode(body))
        for resource in line.over(self._room, call):
            self._room.must(line.right, resource)
        line.signature.read(call)
        return call

    @property
    def _whose(self) -> str:
        return self._room.principal.id


def _needed(label: str, value: Any) -> str:
    if value is None:
        raise Rejected(f"{label} is missing: name one")
    return str(value)


def _members(form: Form, typed: Typed) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for field in form.fields:
        if field.member and (value := field.read(typed)) is not None:
            outer, _, inner = field.member.partition(".")
            if inner:
                members.setdefault(outer, {})[inner] = value
            else:
                members[outer] = value
    return members


def _led_to(form: Form, answer: Any) -> str:
    where = form.leads_to(answer)
    tells = any(where.startswith(f"{PREFIX}{page}") for page in _DONE_THERE)
    return f"{where}?done={form.name}" if tells else where


async def _read(request: Request) -> dict[str, list[str]]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise Rejected(f"a form is sent as {_TYPE}: send it so")
    body = await read_whole(request, _LONGEST)
    if body is None:
        raise Rejected(f"the form is longer than {_LONGEST} bytes: send less")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise Rejected(f"the form cannot be read ({error}): send it again") from None
