"""The confirmation page of a form, with preview and warnings, and its idempotency keys.

Each confirmation carries a key that runs its form once: a button pressed twice submits once, and both requests see
the result. Keys are held in memory, a bounded number per principal.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import msgspec

from forewarn.control.dry_run import DryRunTooLarge
from forewarn.core.scope import scope_title, scope_title_from_id
from forewarn.explain.phrases import duration_text
from forewarn.explain.polling import SILENCE_LIMIT_S
from forewarn.explain.preview import Preview, PreviewedEvent
from forewarn.portal.context import PortalContext
from forewarn.portal.form_definition import Form, FormValues
from forewarn.store.interface import LastPoll
from forewarn.web.polling_report import silent_seconds
from forewarn.web.remedies import Surface, message_for
from forewarn.web.request_parsing import HandlerCall
from forewarn.wording import first_names

_MAX_KEYS_PER_PRINCIPAL = 300  # per user, so that one user's keys do not push out another's

ResultFuture = asyncio.Future[str]


class IdempotencyKeys:
    """Keys of confirmation pages, so that a button pressed twice submits once; at most 300 per user.

    A page is shown with a new key; its submission runs an action once per key. They are in memory only.
    """

    def __init__(self) -> None:
        # Principal id → key → the result; None until the action runs.
        self._keys: defaultdict[str, OrderedDict[str, ResultFuture | None]] = defaultdict(OrderedDict)

    def issue(self, principal_id: str) -> str:
        """Returns a new random key for this user (the id of a principal), who keeps the 300 newest ones.

        Older keys of the user become unknown: see `is_known`.
        """
        key = secrets.token_urlsafe(16)
        keys = self._keys[principal_id]
        keys[key] = None
        while len(keys) > _MAX_KEYS_PER_PRINCIPAL:
            keys.popitem(last=False)
        return key

    def is_known(self, principal_id: str, key: str) -> bool:
        """Whether the key was issued to this user and not dropped since; a used key stays known."""
        return key in self._keys.get(principal_id, ())

    async def run_once(self, principal_id: str, key: str, action: Callable[[], Awaitable[str]]) -> str:
        """Runs `action` for the first call with this key; later calls wait for it and return its result.

        If the action raises, the first call and all that wait raise the same error, and the key is dropped, so that the
        user may try again. An unknown key counts as a new one: check `is_known` first.
        """
        keys = self._keys[principal_id]
        if (result := keys.get(key)) is not None:
            return await asyncio.shield(result)
        result = keys[key] = asyncio.get_running_loop().create_future()
        try:
            result.set_result(await action())
        except BaseException as error:
            keys.pop(key, None)  # the user may try again
            if isinstance(error, Exception):
                result.set_exception(error)
                result.exception()  # marks it as retrieved: other calls may not be waiting for it
            else:
                result.cancel()
            raise
        return result.result()


_MAX_EVENTS_SHOWN = 200
_MAX_SCOPE_QUERIES = 50  # for more scopes, one query reads the polls of all
_MAX_NAMED = 5  # scopes, hosts or VMs in a warning


class SubmittedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the user entered in the form, which the confirmation submits again as a hidden field."""

    name: str  # of the field; it may occur several times
    value: str


class ConfirmationPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page that previews a form and asks the user to confirm it."""

    name: str  # of the form
    title: str
    button: str  # its label
    is_destructive: bool  # the button warns
    sentences: tuple[str, ...]  # what would happen
    warnings: tuple[str, ...]  # sentences, such as that no VM of a scope polls, so that none would see the notice
    events: tuple[PreviewedEvent, ...]  # to be published, the first 200; () if they cannot be previewed
    events_left_out: int  # how many more would be published
    now: float  # lab time
    values: tuple[SubmittedValue, ...]  # as the user entered them; the confirmation submits them again
    idempotency_key: str  # makes the submission run once
    note: str = ""  # why the user has to confirm again: the key is no longer known; "": it is the first time


async def confirmation_page(
    context: PortalContext, form: Form, call: HandlerCall, values: FormValues, key: str, note: str = ""
) -> ConfirmationPage:
    """Builds the confirmation page of a form, with preview and warnings; changes nothing.

    `call` is the API call that the form makes, `values` the entered texts, `key` a new idempotency key, `note` why the
    user has to confirm again. Raises the errors of submitting the form, as far as they are known beforehand. For a
    request too large for a preview the page says so.
    """
    sentences, events = await _preview(context, form, call)
    return ConfirmationPage(
        name=form.name,
        title=form.title,
        button=form.button,
        is_destructive=form.is_destructive,
        sentences=sentences,
        warnings=tuple(_warnings(context, events)),
        events=events[:_MAX_EVENTS_SHOWN],
        events_left_out=max(0, len(events) - _MAX_EVENTS_SHOWN),
        now=context.now(),
        values=tuple(SubmittedValue(name=name, value=value) for name, texts in values.items() for value in texts),
        idempotency_key=key,
        note=note,
    )


async def _preview(
    context: PortalContext, form: Form, call: HandlerCall
) -> tuple[tuple[str, ...], tuple[PreviewedEvent, ...]]:
    if (route := form.preview_route(context.api_routes)) is None:
        assert not isinstance(form.preview, str)
        return tuple(form.preview(context, call)), ()
    try:
        preview: Preview = await route.handler(context, call, **route.signature.parse(call))
    except DryRunTooLarge as error:
        message = message_for(error, Surface.PORTAL)
        return (f"There is no preview: {message}. You can send the request all the same.",), ()
    return preview.sentences or ("This affects no VM.",), preview.events


def _warnings(context: PortalContext, events: Sequence[PreviewedEvent]) -> Iterator[str]:
    yield from _silent_scope_warnings(context, events)
    yield from _unaffected_vm_warnings(context, events)


def _silent_scope_warnings(context: PortalContext, events: Sequence[PreviewedEvent]) -> Iterator[str]:
    """Warns of scopes in which no client polls: no handler there would see the notice."""
    listed = dict.fromkeys(event.scope for event in events if event.listed and event.starts_at != event.published_at)
    polls = _polls_by_scope(context, listed)
    silent = [
        (scope_id, last) for scope_id in listed if (last := _describe_silence(context, polls[scope_id])) is not None
    ]
    for scope_id, last in silent[:_MAX_NAMED]:
        scope = context.store.scope(scope_id)
        title = scope_title(scope) if scope else scope_title_from_id(scope_id)
        yield f"No handler is polling in {title}: {last}."
    if len(silent) > _MAX_NAMED:
        more = len(silent) - _MAX_NAMED
        yield f"No handler is polling in {more} more scope{'s' if more > 1 else ''}."


def _polls_by_scope(context: PortalContext, scope_ids: Collection[str]) -> dict[str, list[LastPoll]]:
    """The last polls of each scope."""
    if len(scope_ids) <= _MAX_SCOPE_QUERIES:
        return {scope_id: context.store.last_polls(scope_id=scope_id) for scope_id in scope_ids}
    polls: dict[str, list[LastPoll]] = {scope_id: [] for scope_id in scope_ids}
    for poll in context.store.last_polls():
        if poll.scope_id in polls:
            polls[poll.scope_id].append(poll)
    return polls


def _describe_silence(context: PortalContext, polls: Sequence[LastPoll]) -> str | None:
    """Since when no client polls, in words; None if one does."""
    if not polls:
        return "no client has polled yet"
    pace_of = context.dependencies.pace_of
    silent_s = min(silent_seconds(poll, pace_of(poll.vm), context.now()) for poll in polls)
    return f"the last poll was {duration_text(silent_s)} ago" if silent_s > SILENCE_LIMIT_S else None


def _unaffected_vm_warnings(context: PortalContext, events: Sequence[PreviewedEvent]) -> Iterator[str]:
    """Names other VMs on the hosts under maintenance, which the request does not affect."""
    affected = {(event.scope, name.casefold()) for event in events for name in event.vms}
    for host in list(dict.fromkeys(event.host for event in events if event.host))[:_MAX_NAMED]:
        others = [vm.name for vm in context.store.vms(host=host) if (vm.scope_id, vm.name.casefold()) not in affected]
        if others:
            yield f"Also on host {host}, but not affected: {first_names(others, _MAX_NAMED)}."
