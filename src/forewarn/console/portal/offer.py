"""What a form shows: its fields with what was typed, and what there is to choose from for whoever is looking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from forewarn.console.portal.context import PortalContext
from forewarn.console.portal.field import MORE, Field, Kind, Typed
from forewarn.console.portal.formline import Form
from forewarn.console.register import Listed
from forewarn.console.showing import title_of_scope
from forewarn.core.fleet import Vm
from forewarn.core.planning import ASK_CAUSE, suits
from forewarn.core.request import Ask
from forewarn.errors import Rejected

MOST = 300  # VMs, hosts or scopes to choose from; others are typed
_MOST_UNKNOWN = 20  # names that are looked up in vain, each at the price of what was meant by it; then none is
_READ = 5_000  # VMs of which it is looked whether they suit


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    value: str
    text: str
    note: str = ""
    is_chosen: bool = False


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A field, as it is shown."""

    name: str
    kind: str
    label: str
    hint: str
    needed: bool
    only_for: str
    value: str  # as it was typed, but for what is among the choices
    choices: tuple[Choice, ...] = ()
    is_cut: bool = False  # there are more to choose from


class FormPage(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    about: str
    button: str
    fields: tuple[Asked, ...]
    sentence: str = ""  # why what was sent was refused


def page_of(room: PortalContext, form: Form, typed: Typed, sentence: str = "") -> FormPage:
    fields = tuple(_asked(room, form, field, typed) for field in form.fields)
    return FormPage(
        name=form.name, title=form.title, about=form.about, button=form.button, fields=fields, sentence=sentence
    )


def _asked(room: PortalContext, form: Form, field: Field, typed: Typed) -> Asked:
    is_new = field.name not in typed and f"{field.name}{MORE}" not in typed
    texts = [field.default] if is_new and field.default else field.texts(typed)
    choices, rest, is_cut = _choices(room, form, field, texts)
    return Asked(
        name=field.name,
        kind=field.kind,
        label=field.label,
        hint=field.hint,
        needed=field.needed,
        only_for=field.only_for,
        value=", ".join(rest),
        choices=choices,
        is_cut=is_cut,
    )


def _choices(
    room: PortalContext, form: Form, field: Field, texts: list[str]
) -> tuple[tuple[Choice, ...], Sequence[str], bool]:
    match field.kind:
        case Kind.VMS | Kind.VM:
            return _vms(room, form, texts)
        case Kind.HOST | Kind.HOSTS:
            hosts = [host for host in room.store.hosts() if room.visible.host(host.name)]
            offered = [Choice(value=h.name, text=h.name, note=str(h.health)) for h in hosts]
        case Kind.SCOPE:
            offered = list(islice(_scopes(room), MOST + 1))
        case Kind.CHOICE:
            offered = [Choice(value=value, text=text) for value, text in field.choices]
        case _:
            return (), texts, False
    return _marked(offered, texts)


def _marked(offered: Sequence[Choice], texts: list[str]) -> tuple[tuple[Choice, ...], Sequence[str], bool]:
    """Those that were typed first, so that none of them is cut off."""
    wanted = {text.casefold() for text in texts}
    chosen = [msgspec.structs.replace(c, is_chosen=True) for c in offered if c.value.casefold() in wanted]
    known = {choice.value.casefold() for choice in chosen}
    rest = [text for text in texts if text.casefold() not in known]
    if len(offered) <= MOST:
        at = {choice.value: choice for choice in chosen}
        return tuple(at.get(choice.value, choice) for choice in offered), rest, False
    others = [choice for choice in offered if choice.value.casefold() not in known]
    return (*chosen, *others[: MOST - len(chosen)]), rest, True


def _vms(room: PortalContext, form: Form, texts: list[str]) -> tuple[tuple[Choice, ...], Sequence[str], bool]:
    named: dict[str, Choice] = {}
    rest: list[str] = []
    for text in texts:
        vm = _found(room, text) if len(rest) < _MOST_UNKNOWN else None
        if vm is None:
            rest.append(text)
        else:
            named[vm.key] = _choice(vm, is_chosen=True)
    fitting = (choice for choice in _fitting(room, form) if choice.value not in named)
    left = max(0, MOST - len(named))
    others = list(islice(fitting, left + 1))
    return (*named.values(), *others[:left]), rest, len(others) > left


def _found(room: PortalContext, text: str) -> Vm | None:
    try:
        return room.directory.find(text)
    except Rejected:
        return None


def _fitting(room: PortalContext, form: Form) -> Iterator[Choice]:
    """The VMs for which whoever is looking may ask for this; in a large fleet, whether it suits them or not."""
    ask, right = form.fixed.get("ask"), form.api_route(room.api_routes).right
    looks = room.store.counts().vms <= _READ
    for listed in _listed(room):
        if not room.principal.may(right, listed.resource):
            continue
        vm = room.store.vm(listed.key)
        if vm is not None and (ask is None or not looks or suits(vm, ASK_CAUSE[Ask(ask)])):
            yield _choice(vm)


def _listed(room: PortalContext) -> Iterator[Listed]:
    for group in room.directory.groups():
        yield from room.directory.within(group)


def _choice(vm: Vm, *, is_chosen: bool = False) -> Choice:
    notes = [vm.resource_group, *([vm.host] if vm.host else []), *([vm.power] if vm.power != "running" else [])]
    return Choice(value=vm.key, text=vm.name, note=", ".join(notes), is_chosen=is_chosen)


def _scopes(room: PortalContext) -> Iterator[Choice]:
    """Sets and services; a standalone VM is a scope of its own, and named as a VM."""
    for scope_id in room.store.scope_ids():
        if not scope_id.startswith("vm:") and room.sees_scope(scope_id) and (scope := room.store.scope(scope_id)):
            yield Choice(value=scope_id, text=title_of_scope(scope), note=f"{len(scope.present)} VMs")
