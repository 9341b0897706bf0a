"""Serves forms: shows fields and their choices, asks for confirmation, and calls the API's handler.

Authorization and refusals are those of the API route behind the form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from forewarn.core.fleet import Vm
from forewarn.core.planning import OPERATION_CAUSES, is_applicable
from forewarn.core.request import RequestedOperation
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import Conflict, NotFound, Rejected, Unavailable
from forewarn.portal.browser_security import require_csrf_token
from forewarn.portal.confirmation import IdempotencyKeys, confirmation_page
from forewarn.portal.context import PORTAL_PREFIX, CurrentSession, PageAuthenticator, PortalContext
from forewarn.portal.form_catalog import FORMS
from forewarn.portal.form_definition import FREE_TEXT_SUFFIX, FieldKind, Form, FormField, FormValues
from forewarn.portal.rendering import error_page_response, page_response, sign_in_redirect
from forewarn.web.directory import IndexedVm
from forewarn.web.errors import status_and_message
from forewarn.web.remedies import Surface
from forewarn.web.request_parsing import HandlerCall, read_limited_body
from forewarn.web.routing import everything
from forewarn.web.view_builder import scope_title

MAX_CHOICES = 300  # VMs, hosts or scopes to choose from; others are typed
_MAX_FAILED_LOOKUPS = 20  # names that are looked up in vain, each at the price of what was meant by it; then none is
_MAX_VMS_CHECKED = 5_000  # VMs of which it is looked whether they suit


class FieldChoice(msgspec.Struct, frozen=True, kw_only=True):
    value: str
    text: str
    note: str = ""
    is_chosen: bool = False


class FormFieldView(msgspec.Struct, frozen=True, kw_only=True):
    """A field, as it is shown."""

    name: str
    kind: str
    label: str
    hint: str
    is_required: bool
    fault_kind: str
    value: str  # as it was typed, but for what is among the choices
    choices: tuple[FieldChoice, ...] = ()
    is_truncated: bool = False  # there are more to choose from


class FormPage(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    description: str
    button: str
    fields: tuple[FormFieldView, ...]
    error: str = ""  # why what was sent was refused


def form_page(context: PortalContext, form: Form, typed: FormValues, sentence: str = "") -> FormPage:
    fields = tuple(_field_view(context, form, field, typed) for field in form.fields)
    return FormPage(
        name=form.name,
        title=form.title,
        description=form.description,
        button=form.button,
        fields=fields,
        error=sentence,
    )


def _field_view(context: PortalContext, form: Form, field: FormField, typed: FormValues) -> FormFieldView:
    is_new = field.name not in typed and f"{field.name}{FREE_TEXT_SUFFIX}" not in typed
    texts = [field.default] if is_new and field.default else field.entered_texts(typed)
    choices, rest, is_cut = _field_choices(context, form, field, texts)
    return FormFieldView(
        name=field.name,
        kind=field.kind,
        label=field.label,
        hint=field.hint,
        is_required=field.is_required,
        fault_kind=field.fault_kind,
        value=", ".join(rest),
        choices=choices,
        is_truncated=is_cut,
    )


def _field_choices(
    context: PortalContext, form: Form, field: FormField, texts: list[str]
) -> tuple[tuple[FieldChoice, ...], Sequence[str], bool]:
    match field.kind:
        case FieldKind.VMS | FieldKind.VM:
            return _vm_choices(context, form, texts)
        case FieldKind.HOST | FieldKind.HOSTS:
            hosts = [host for host in context.store.hosts() if context.visibility.can_see_host(host.name)]
            offered = [FieldChoice(value=h.name, text=h.name, note=str(h.health)) for h in hosts]
        case FieldKind.SCOPE:
            offered = list(islice(_scope_choices(context), MAX_CHOICES + 1))
        case FieldKind.CHOICE:
            offered = [FieldChoice(value=value, text=text) for value, text in field.choices]
        case _:
            return (), texts, False
    return _mark_chosen(offered, texts)


def _mark_chosen(
    offered: Sequence[FieldChoice], texts: list[str]
) -> tuple[tuple[FieldChoice, ...], Sequence[str], bool]:
    """Those that were typed first, so that none of them is cut off."""
    wanted = {text.casefold() for text in texts}
    chosen = [msgspec.structs.replace(c, is_chosen=True) for c in offered if c.value.casefold() in wanted]
    known = {choice.value.casefold() for choice in chosen}
    rest = [text for text in texts if text.casefold() not in known]
    if len(offered) <= MAX_CHOICES:
        at = {choice.value: choice for choice in chosen}
        return tuple(at.get(choice.value, choice) for choice in offered), rest, False
    others = [choice for choice in offered if choice.value.casefold() not in known]
    return (*chosen, *others[: MAX_CHOICES - len(chosen)]), rest, True


def _vm_choices(
    context: PortalContext, form: Form, texts: list[str]
) -> tuple[tuple[FieldChoice, ...], Sequence[str], bool]:
    named: dict[str, FieldChoice] = {}
    rest: list[str] = []
    for text in texts:
        vm = _find_vm(context, text) if len(rest) < _MAX_FAILED_LOOKUPS else None
        if vm is None:
            rest.append(text)
        else:
            named[vm.key] = _vm_choice(vm, is_chosen=True)
    fitting = (choice for choice in _eligible_vm_choices(context, form) if choice.value not in named)
    left = max(0, MAX_CHOICES - len(named))
    others = list(islice(fitting, left + 1))
    return (*named.values(), *others[:left]), rest, len(others) > left


def _find_vm(context: PortalContext, text: str) -> Vm | None:
    try:
        return context.directory.find(text)
    except Rejected:
        return None


def _eligible_vm_choices(context: PortalContext, form: Form) -> Iterator[FieldChoice]:
    """The VMs for which whoever is looking may ask for this; in a large fleet, whether it suits them or not."""
    ask, right = form.fixed_body.get("ask"), form.api_route(context.api_routes).right
    looks = context.store.counts().vms <= _MAX_VMS_CHECKED
    for listed in _visible_vms(context):
        if not context.principal.may(right, listed.resource):
            continue
        vm = context.store.vm(listed.key)
        if vm is not None and (
            ask is None or not looks or is_applicable(vm, OPERATION_CAUSES[RequestedOperation(ask)])
        ):
            yield _vm_choice(vm)


def _visible_vms(context: PortalContext) -> Iterator[IndexedVm]:
    for group in context.directory.groups():
        yield from context.directory.vms_within(group)


def _vm_choice(vm: Vm, *, is_chosen: bool = False) -> FieldChoice:
    notes = [vm.resource_group, *([vm.host] if vm.host else []), *([vm.power] if vm.power != "running" else [])]
    return FieldChoice(value=vm.key, text=vm.name, note=", ".join(notes), is_chosen=is_chosen)


def _scope_choices(context: PortalContext) -> Iterator[FieldChoice]:
    """Sets and services; a standalone VM is a scope of its own, and named as a VM."""
    for scope_id in context.store.scope_ids():
        if (
            not scope_id.startswith("vm:")
            and context.can_see_scope(scope_id)
            and (scope := context.store.scope(scope_id))
        ):
            yield FieldChoice(value=scope_id, text=scope_title(scope), note=f"{len(scope.present_vms)} VMs")


_MAX_FORM_BYTES = 2 * 1024 * 1024  # ten thousand VMs by their keys
_MAX_FIELDS = 20_000
_FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
_RESERVED_FIELDS = ("token", "confirmed", "slip", "again")  # fields of every form
_UNKNOWN_KEY_MESSAGE = (
    "This confirmation is not known any more, and nothing was done: look again what will happen, and confirm."
)
_PAGES_WITH_DONE_MESSAGE = ("/requests/", "/rollouts/", "/lab")  # pages that say what was just done


def form_routes(enter: PageAuthenticator) -> list[BaseRoute]:
    slips = IdempotencyKeys()

    async def endpoint(request: Request) -> Response:
        try:
            context, visit = await enter(request)
        except Exception as error:
            return sign_in_redirect(error, request)
        try:
            sending = _FormRequest(context, visit, request, _find_form(request.path_params["name"]), slips)
            return await (sending.submit() if request.method == "POST" else sending.show())
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is left to read it
        except Exception as error:
            return error_page_response(error, context, visit, request)

    return [Route(f"{PORTAL_PREFIX}/forms/{{name}}", endpoint, methods=["GET", "POST"])]


def _find_form(name: str) -> Form:
    form = FORMS.get(name)
    if form is None:
        raise NotFound(f"there is no form {name!r}: start at the fleet")
    return form


def _require_right_somewhere(context: PortalContext, form: Form) -> None:
    """Whoever may do this nowhere is told so before they fill in anything."""
    route = form.api_route(context.api_routes)
    if route.resources is everything:
        context.require(route.right, ROOT_RESOURCE)
    elif not context.principal.may_anywhere(route.right):
        raise context.missing_right_error(route.right, "anything")


def _query_values(request: Request) -> FormValues:
    typed: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        typed.setdefault(name, []).append(value)
    return typed


def _form_response(
    context: PortalContext,
    visit: CurrentSession,
    request: Request,
    form: Form,
    typed: FormValues,
    error: Exception | None = None,
) -> Response:
    """The form, with what was typed, and why that was refused."""
    status, sentence = (200, "") if error is None else status_and_message(error, Surface.PORTAL)
    return page_response(
        "form.html", context, visit, request, status=status, page=form_page(context, form, typed, sentence)
    )


class _FormRequest:
    """One form, opened or sent: to see what would happen, or to have it happen."""

    def __init__(
        self, context: PortalContext, visit: CurrentSession, request: Request, form: Form, slips: IdempotencyKeys
    ) -> None:
        self._context = context
        self._session = visit
        self._request = request
        self._form = form
        self._idempotency_keys = slips

    async def show(self) -> Response:
        """The form; where a link says all that it asks for, what will happen."""
        form, typed = self._form, _query_values(self._request)
        _require_right_somewhere(self._context, form)
        if not form.confirms_directly or not any(field.name in typed for field in form.fields):
            return _form_response(self._context, self._session, self._request, form, typed)
        try:
            return await self._ask_confirmation(typed)
        except (Rejected, Conflict, Unavailable) as error:
            return _form_response(self._context, self._session, self._request, form, typed, error)

    async def submit(self) -> Response:
        fields = await _read_form(self._request)
        require_csrf_token(self._session, self._request.headers, fields)
        _require_right_somewhere(self._context, self._form)
        typed = {name: values for name, values in fields.items() if name not in _RESERVED_FIELDS}
        if "again" in fields:
            return _form_response(self._context, self._session, self._request, self._form, typed)
        try:
            if "yes" not in fields.get("confirmed", ()):
                return await self._ask_confirmation(typed)
            return await self._perform(typed, (fields.get("slip") or [""])[0])
        except (Rejected, Conflict, Unavailable) as error:
            return _form_response(self._context, self._session, self._request, self._form, typed, error)

    async def _ask_confirmation(self, typed: FormValues, note: str = "") -> Response:
        call = self._api_call(typed)
        slip = self._idempotency_keys.issue(self._principal_id)
        page = await confirmation_page(self._context, self._form, call, typed, slip, note)
        return page_response("confirmation.html", self._context, self._session, self._request, page=page)

    async def _perform(self, typed: FormValues, slip: str) -> Response:
        if slip and not self._idempotency_keys.is_known(self._principal_id, slip):
            return await self._ask_confirmation(typed, _UNKNOWN_KEY_MESSAGE)

        async def deed() -> str:
            call, route = self._api_call(typed), self._form.api_route(self._context.api_routes)
            return _redirect_url(self._form, await route.handler(self._context, call, **route.signature.parse(call)))

        where = await self._idempotency_keys.run_once(
            self._principal_id, slip or self._idempotency_keys.issue(self._principal_id), deed
        )
        return RedirectResponse(where, status_code=303)

    def _api_call(self, typed: FormValues) -> HandlerCall:
        """The call of the API that this form is, by somebody who may make it."""
        form, route = self._form, self._form.api_route(self._context.api_routes)
        names = {f.path_parameter: _require_value(f.label, f.parse(typed)) for f in form.fields if f.path_parameter}
        body = {**form.fixed_body, **_body_members(form, typed), **form.extra_body(self._context, typed)}
        call = HandlerCall(path_params=names, body=msgspec.json.encode(body))
        for resource in route.resources(self._context, call):
            self._context.require(route.right, resource)
        route.signature.parse(call)
        return call

    @property
    def _principal_id(self) -> str:
        return self._context.principal.id


def _require_value(label: str, value: Any) -> str:
    if value is None:
        raise Rejected(f"{label} is missing: name one")
    return str(value)


def _body_members(form: Form, typed: FormValues) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for field in form.fields:
        if field.body_member and (value := field.parse(typed)) is not None:
            outer, _, inner = field.body_member.partition(".")
            if inner:
                members.setdefault(outer, {})[inner] = value
            else:
                members[outer] = value
    return members


def _redirect_url(form: Form, answer: Any) -> str:
    where = form.result_url(answer)
    tells = any(where.startswith(f"{PORTAL_PREFIX}{page}") for page in _PAGES_WITH_DONE_MESSAGE)
    return f"{where}?done={form.name}" if tells else where


async def _read_form(request: Request) -> dict[str, list[str]]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_MEDIA_TYPE:
        raise Rejected(f"a form is sent as {_FORM_MEDIA_TYPE}: send it so")
    body = await read_limited_body(request, _MAX_FORM_BYTES)
    if body is None:
        raise Rejected(f"the form is longer than {_MAX_FORM_BYTES} bytes: send less")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise Rejected(f"the form cannot be read ({error}): send it again") from None
