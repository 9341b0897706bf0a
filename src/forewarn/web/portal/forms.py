"""Serves forms: shows fields and their choices, asks for confirmation, and calls the API's handler.

Authorization and refusals are those of the API route behind the form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from forewarn.base.times import encode_time
from forewarn.control.directory import IndexedVm
from forewarn.core.fleet import Vm
from forewarn.core.planning import OPERATION_CAUSES, is_applicable
from forewarn.core.request import RequestedOperation
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.core.scope import scope_name
from forewarn.errors import Conflict, NotFound, Rejected, Unavailable
from forewarn.web.errors import Surface, status_and_message
from forewarn.web.pipeline import authorize_and_parse, run_route
from forewarn.web.portal.browser_security import require_csrf_token
from forewarn.web.portal.confirmation import IdempotencyKeys, confirmation_page
from forewarn.web.portal.context import PORTAL_PREFIX, CurrentSession, PageAuthenticator, PortalContext
from forewarn.web.portal.form_catalog import FORMS
from forewarn.web.portal.form_definition import FREE_TEXT_SUFFIX, FieldKind, Form, FormField, FormValues
from forewarn.web.portal.rendering import page_response, run_page_request
from forewarn.web.request_keys import request_key
from forewarn.web.request_parsing import HandlerCall, read_limited_body
from forewarn.web.routing import everything

MAX_CHOICES = 300  # VMs, hosts or scopes that a field offers; the user types others
_MAX_FAILED_LOOKUPS = 20  # unknown names per field; each one searches for similar names, so no more are looked up
_MAX_VMS_CHECKED = 5_000  # in a larger fleet a form offers VMs without checking their state


class FieldChoice(msgspec.Struct, frozen=True, kw_only=True):
    value: str  # that the form submits, such as a VM's key
    text: str  # its label
    note: str = ""  # after the label, such as the host of a VM
    is_chosen: bool = False  # it is filled in: the user entered it, the link names it, or it is the default


class FormFieldView(msgspec.Struct, frozen=True, kw_only=True):
    """A form field as the template shows it, with its current value and its choices."""

    name: str  # this and the next five are those of the FormField
    kind: str  # a value of FieldKind
    label: str  # the text beside the field
    hint: str  # text below the field; "": none
    is_required: bool  # the API rejects a call without it; the form itself does not check that
    fault_kind: str  # the only kind of fault that has this parameter; "" for other fields
    value: str  # the entered texts or the default, joined by `, `, without those that are among `choices`; "": none
    choices: tuple[FieldChoice, ...] = ()  # of VMs, hosts, scopes and of a fixed list; () for other kinds
    is_truncated: bool = False  # there are more choices than the 300 that are offered


class FormPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page of a form to fill in, empty or with the values that were rejected."""

    name: str  # the name of the form, as in its URL
    title: str  # its heading
    description: str  # what the form does, above the fields
    button: str  # the label with which the user confirms the form later
    fields: tuple[FormFieldView, ...]  # in the order of the form
    error: str = ""  # why the submitted values were rejected; "": they were not


def _form_page(context: PortalContext, form: Form, values: FormValues, error: str = "") -> FormPage:
    fields = tuple(_field_view(context, form, field, values) for field in form.fields)
    return FormPage(
        name=form.name,
        title=form.title,
        description=form.description,
        button=form.button,
        fields=fields,
        error=error,
    )


def _field_view(context: PortalContext, form: Form, field: FormField, values: FormValues) -> FormFieldView:
    is_new = field.name not in values and f"{field.name}{FREE_TEXT_SUFFIX}" not in values
    texts = [field.default] if is_new and field.default else field.entered_texts(values)
    choices, rest, is_partial = _field_choices(context, form, field, texts)
    return FormFieldView(
        name=field.name,
        kind=field.kind,
        label=field.label,
        hint=field.hint,
        is_required=field.is_required,
        fault_kind=field.fault_kind,
        value=", ".join(rest),
        choices=choices,
        is_truncated=is_partial,
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
    wanted = {text.casefold() for text in texts}
    chosen = [
        msgspec.structs.replace(choice, is_chosen=True) for choice in offered if choice.value.casefold() in wanted
    ]
    known = {choice.value.casefold() for choice in chosen}
    rest = [text for text in texts if text.casefold() not in known]
    if len(offered) <= MAX_CHOICES:
        chosen_by_value = {choice.value: choice for choice in chosen}
        return tuple(chosen_by_value.get(choice.value, choice) for choice in offered), rest, False
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
    eligible = (choice for choice in _eligible_vm_choices(context, form) if choice.value not in named)
    left = max(0, MAX_CHOICES - len(named))
    others = list(islice(eligible, left + 1))
    return (*named.values(), *others[:left]), rest, len(others) > left


def _find_vm(context: PortalContext, text: str) -> Vm | None:
    try:
        return context.directory.find(text)
    except Rejected:
        return None


def _eligible_vm_choices(context: PortalContext, form: Form) -> Iterator[FieldChoice]:
    """The VMs for which the user may submit this form. In a large fleet their state is not checked."""
    operation, right = form.fixed_body.get("operation"), form.api_route(context.api_routes).right
    checks_eligibility = context.store.counts().vms <= _MAX_VMS_CHECKED
    for indexed in _visible_vms(context):
        if not context.principal.may(right, indexed.resource):
            continue
        vm = context.store.vm(indexed.key)
        if vm is not None and (
            operation is None
            or not checks_eligibility
            or is_applicable(vm, OPERATION_CAUSES[RequestedOperation(operation)])
        ):
            yield _vm_choice(vm)


def _visible_vms(context: PortalContext) -> Iterator[IndexedVm]:
    for group in context.directory.groups():
        yield from context.directory.vms_within(group)


def _vm_choice(vm: Vm, *, is_chosen: bool = False) -> FieldChoice:
    notes = [vm.resource_group, *([vm.host] if vm.host else []), *([vm.power] if vm.power != "running" else [])]
    return FieldChoice(value=vm.key, text=vm.name, note=", ".join(notes), is_chosen=is_chosen)


def _scope_choices(context: PortalContext) -> Iterator[FieldChoice]:
    """Scopes of several VMs. A standalone VM is a scope of its own, which the user names like a VM."""
    for scope_id in context.store.scope_ids():
        if (
            not scope_id.startswith("vm:")
            and context.can_see_scope(scope_id)
            and (scope := context.store.scope(scope_id))
        ):
            yield FieldChoice(value=scope_id, text=scope_name(scope), note=f"{len(scope.present_vms)} VMs")


_MAX_FORM_BYTES = 2 * 1024 * 1024  # enough for the keys of ten thousand VMs
_MAX_FIELDS = 20_000
_FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
# Fields of every form: CSRF token, "yes" on the confirmation page, idempotency key, and the button Back.
_RESERVED_FIELDS = ("token", "confirmed", "slip", "again")
_UNKNOWN_KEY_MESSAGE = "This confirmation has expired, and nothing was done. Check the preview, and confirm again."
_PAGES_WITH_DONE_MESSAGE = ("/requests/", "/rollouts/", "/budgets", "/standing-order", "/lab")


def form_routes(authenticate: PageAuthenticator) -> list[BaseRoute]:
    """Return the route of all forms, `/portal/forms/NAME`."""
    idempotency_keys = IdempotencyKeys()

    async def endpoint(request: Request) -> Response:
        async def answer(context: PortalContext, session: CurrentSession) -> Response:
            form = _find_form(request.path_params["name"])
            form_request = _FormRequest(context, session, request, form, idempotency_keys)
            return await (form_request.submit() if request.method == "POST" else form_request.show())

        return await run_page_request(request, authenticate, answer)

    return [Route(f"{PORTAL_PREFIX}/forms/{{name}}", endpoint, methods=["GET", "POST"])]


def _find_form(name: str) -> Form:
    form = FORMS.get(name)
    if form is None:
        raise NotFound(f"form {name!r} does not exist: start at the fleet")
    return form


def _require_right_somewhere(context: PortalContext, form: Form) -> None:
    """Raises Forbidden if the user may submit this form for no resource at all, before they fill it in."""
    route = form.api_route(context.api_routes)
    if route.resources is everything:
        context.require(route.right, ROOT_RESOURCE)
    elif not context.principal.may_anywhere(route.right):
        raise context.missing_right_error(route.right, "anything")


def _query_values(request: Request) -> FormValues:
    values: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        values.setdefault(name, []).append(value)
    return values


def _form_response(
    context: PortalContext,
    session: CurrentSession,
    request: Request,
    form: Form,
    values: FormValues,
    error: Exception | None = None,
) -> Response:
    status, message = (200, "") if error is None else status_and_message(error, Surface.PORTAL)
    return page_response(
        "form.html", context, session, request, status=status, page=_form_page(context, form, values, message)
    )


class _FormRequest:
    def __init__(
        self,
        context: PortalContext,
        session: CurrentSession,
        request: Request,
        form: Form,
        idempotency_keys: IdempotencyKeys,
    ) -> None:
        self._context = context
        self._session = session
        self._request = request
        self._form = form
        self._idempotency_keys = idempotency_keys

    async def show(self) -> Response:
        form, values = self._form, _query_values(self._request)
        _require_right_somewhere(self._context, form)
        if not form.confirms_directly or not any(field.name in values for field in form.fields):
            return _form_response(self._context, self._session, self._request, form, values)
        try:
            return await self._ask_confirmation(values)
        except (Rejected, Conflict, Unavailable) as error:
            return _form_response(self._context, self._session, self._request, form, values, error)

    async def submit(self) -> Response:
        fields = await _read_form(self._request)
        require_csrf_token(self._session, self._request.headers, fields)
        _require_right_somewhere(self._context, self._form)
        values = {name: values for name, values in fields.items() if name not in _RESERVED_FIELDS}
        if "again" in fields:
            return _form_response(self._context, self._session, self._request, self._form, values)
        try:
            if "yes" not in fields.get("confirmed", ()):
                return await self._ask_confirmation(values)
            return await self._perform(values, (fields.get("slip") or [""])[0])
        except (Rejected, Conflict, Unavailable) as error:
            return _form_response(self._context, self._session, self._request, self._form, values, error)

    async def _ask_confirmation(self, values: FormValues, note: str = "") -> Response:
        call = self._api_call(values)
        key = self._idempotency_keys.issue(self._principal_id)
        page = await confirmation_page(self._context, self._form, call, values, key, note)
        return page_response("confirmation.html", self._context, self._session, self._request, page=page)

    async def _perform(self, values: FormValues, key: str) -> Response:
        is_known = not key or self._idempotency_keys.is_known(self._principal_id, key)
        if not is_known and not self._was_performed(values, key):
            return await self._ask_confirmation(values, _UNKNOWN_KEY_MESSAGE)

        async def call_api() -> str:
            route, call = self._form.api_route(self._context.api_routes), self._unchecked_call(values)
            return _redirect_url(self._form, await run_route(self._context, route, call, key))

        result_url = await self._idempotency_keys.run_once(
            self._principal_id, key or self._idempotency_keys.issue(self._principal_id), call_api
        )
        return RedirectResponse(result_url, status_code=303)

    def _was_performed(self, values: FormValues, key: str) -> bool:
        """Whether an earlier process performed it, whose answer was lost: a request with this key exists."""
        route = self._form.api_route(self._context.api_routes)
        key_of_call = request_key(self._context, route, self._unchecked_call(values), key)
        return route.show_repeated is not None and self._context.control.request_keys.find(key_of_call) is not None

    def _api_call(self, values: FormValues) -> HandlerCall:
        call = self._unchecked_call(values)
        authorize_and_parse(self._form.api_route(self._context.api_routes), self._context, call)
        return call

    def _unchecked_call(self, values: FormValues) -> HandlerCall:
        form = self._form
        names = {f.path_parameter: _require_value(f.label, f.parse(values)) for f in form.fields if f.path_parameter}
        body = {**form.fixed_body, **_body_members(form, values), **form.extra_body(self._context, values)}
        return HandlerCall(path_params=names, body=msgspec.json.encode(body, enc_hook=encode_time))

    @property
    def _principal_id(self) -> str:
        return self._context.principal.id


def _require_value(label: str, value: Any) -> str:
    if value is None:
        raise Rejected(f"{label} is missing: fill it in")
    return str(value)


def _body_members(form: Form, values: FormValues) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for field in form.fields:
        if field.body_member and (value := field.parse(values)) is not None:
            outer, _, inner = field.body_member.partition(".")
            if inner:
                members.setdefault(outer, {})[inner] = value
            else:
                members[outer] = value
    return members


def _redirect_url(form: Form, response: Any) -> str:
    result_url = form.result_url(response)
    shows_message = any(result_url.startswith(f"{PORTAL_PREFIX}{page}") for page in _PAGES_WITH_DONE_MESSAGE)
    separator = "&" if "?" in result_url else "?"
    return f"{result_url}{separator}done={form.name}" if shows_message else result_url


async def _read_form(request: Request) -> dict[str, list[str]]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_MEDIA_TYPE:
        raise Rejected(f"the request is not a form: send {_FORM_MEDIA_TYPE}")
    body = await read_limited_body(request, _MAX_FORM_BYTES)
    if body is None:
        raise Rejected(f"the form is larger than {_MAX_FORM_BYTES} bytes: name fewer VMs")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise Rejected(f"the form cannot be read ({error}): submit it again") from None
