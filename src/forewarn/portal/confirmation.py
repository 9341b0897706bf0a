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
from forewarn.explain.phrases import duration_text
from forewarn.explain.polling import SILENCE_LIMIT_S
from forewarn.explain.preview import Preview, PreviewedEvent
from forewarn.portal.context import PortalContext
from forewarn.portal.form_definition import Form, FormValues
from forewarn.store.interface import LastPoll
from forewarn.web.remedies import Surface, message_for
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.view_builder import scope_title

_MAX_KEYS_PER_PRINCIPAL = 300  # of one person, so that nobody crowds out what others have before them

ResultFuture = asyncio.Future[str]


class IdempotencyKeys:
    def __init__(self) -> None:
        # Whose, which → where it led.
        self._keys: defaultdict[str, OrderedDict[str, ResultFuture | None]] = defaultdict(OrderedDict)

    def issue(self, whose: str) -> str:
        slip = secrets.token_urlsafe(16)
        theirs = self._keys[whose]
        theirs[slip] = None
        while len(theirs) > _MAX_KEYS_PER_PRINCIPAL:
            theirs.popitem(last=False)
        return slip

    def is_known(self, whose: str, slip: str) -> bool:
        return slip in self._keys.get(whose, ())

    async def run_once(self, whose: str, slip: str, deed: Callable[[], Awaitable[str]]) -> str:
        """Where the deed led: done now, or by whoever came first with this slip."""
        theirs = self._keys[whose]
        if (where := theirs.get(slip)) is not None:
            return await asyncio.shield(where)
        where = theirs[slip] = asyncio.get_running_loop().create_future()
        try:
            where.set_result(await deed())
        except BaseException as error:
            theirs.pop(slip, None)  # nothing was done: it may be tried again
            if isinstance(error, Exception):
                where.set_exception(error)
                where.exception()  # whoever waits is told; where nobody does, it is told here
            else:
                where.cancel()
            raise
        return where.result()


_MAX_EVENTS_SHOWN = 200  # events told one by one
_MAX_SCOPE_QUERIES = 50  # scopes
_MAX_NAMED = 5  # scopes or hosts told one by one


class SubmittedValue(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, to be sent again with the confirmation."""

    name: str
    value: str


class ConfirmationPage(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    button: str
    is_destructive: bool
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    events: tuple[PreviewedEvent, ...]
    events_left_out: int
    now: float
    values: tuple[SubmittedValue, ...]
    idempotency_key: str
    note: str = ""  # why it is asked again


async def confirmation_page(
    context: PortalContext, form: Form, call: HandlerCall, typed: FormValues, slip: str, note: str = ""
) -> ConfirmationPage:
    """Raises as sending it would, as far as that can be known beforehand."""
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
        values=tuple(SubmittedValue(name=name, value=value) for name, values in typed.items() for value in values),
        idempotency_key=slip,
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
    return preview.sentences or ("No VM is hit by this.",), preview.events


def _warnings(context: PortalContext, events: Sequence[PreviewedEvent]) -> Iterator[str]:
    yield from _silent_scope_warnings(context, events)
    yield from _unaffected_vm_warnings(context, events)


def _silent_scope_warnings(context: PortalContext, events: Sequence[PreviewedEvent]) -> Iterator[str]:
    """Scopes where nobody asks for events: whatever notice is given there, nobody reads it."""
    listed = dict.fromkeys(event.scope for event in events if event.listed and event.starts_at != event.published_at)
    polls = _polls_by_scope(context, listed)
    silent = [
        (scope_id, last) for scope_id in listed if (last := _describe_silence(context, polls[scope_id])) is not None
    ]
    for scope_id, last in silent[:_MAX_NAMED]:
        scope = context.store.scope(scope_id)
        title = scope_title(scope) if scope else scope_id
        whom = "it" if scope_id.startswith("vm:") else "its VMs"
        yield f"Nobody polls {title} ({last}): {whom} will be hit unprepared."
    if len(silent) > _MAX_NAMED:
        more = len(silent) - _MAX_NAMED
        yield f"Nobody polls {more} more scope{'s' if more > 1 else ''}, either."


def _polls_by_scope(context: PortalContext, scope_ids: Collection[str]) -> dict[str, list[LastPoll]]:
    """Of a few scopes by each, of many by one look at all."""
    if len(scope_ids) <= _MAX_SCOPE_QUERIES:
        return {scope_id: context.store.last_polls(scope_id=scope_id) for scope_id in scope_ids}
    polls: dict[str, list[LastPoll]] = {scope_id: [] for scope_id in scope_ids}
    for polled in context.store.last_polls():
        if polled.scope_id in polls:
            polls[polled.scope_id].append(polled)
    return polls


def _describe_silence(context: PortalContext, polls: Sequence[LastPoll]) -> str | None:
    """Since when nobody of those has asked, in words; None: somebody does."""
    if not polls:
        return "nobody ever did"
    silent_s = context.now() - max(polled.at for polled in polls)
    paces = [pace for polled in polls if (pace := context.dependencies.pace_of(polled.vm)) is not None]
    _, speed, _ = context.control.lab_clock.status()
    # After a restart of the service nobody has been heard yet: then what is stored must do.
    is_silent = all(pace.is_silent for pace in paces) if paces else silent_s > SILENCE_LIMIT_S * max(1.0, speed)
    return f"the last poll was {duration_text(silent_s)} ago" if is_silent else None


def _unaffected_vm_warnings(context: PortalContext, events: Sequence[PreviewedEvent]) -> Iterator[str]:
    """Who else is on the hosts that are worked on, and is not hit."""
    hit = {(event.scope, name.casefold()) for event in events for name in event.vms}
    for host in list(dict.fromkeys(event.host for event in events if event.host))[:_MAX_NAMED]:
        others = [vm.name for vm in context.store.vms(host=host) if (vm.scope_id, vm.name.casefold()) not in hit]
        if others:
            more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
            yield f"Also on host {host}, and not hit by this: {', '.join(others[:_MAX_NAMED])}{more}."
