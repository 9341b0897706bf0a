"""The confirmation page of a form, with warnings and a preview by batch, and its idempotency keys.

Each confirmation carries a key that runs its form once: a button pressed twice submits once, and both requests see
the result. Keys are held in memory, a bounded number per principal.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from forewarn.base.duration import duration_text
from forewarn.base.times import Timestamp, timestamp
from forewarn.base.wording import first_names, scope_name_from_id
from forewarn.control.dry_run import DryRunTooLarge
from forewarn.core.cause import CAUSE_RULES, Cause, verb_noun
from forewarn.core.explain.polling import SILENCE_LIMIT_S
from forewarn.core.explain.preview import Preview, PreviewedEvent, preview_warnings
from forewarn.core.fleet import vm_key_in_scope
from forewarn.core.history import LastPoll
from forewarn.core.scope import scope_name
from forewarn.protocol.document import Kind
from forewarn.web.errors import Surface, message_for
from forewarn.web.polling_report import silent_seconds
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.form_definition import Form, FormValues
from forewarn.web.portal.wave_diagram import WaveDiagram, diagram_of_plan
from forewarn.web.request_parsing import HandlerCall

# The warnings of a confirmation page: what a user must have read before they confirm a form.

_MAX_SCOPE_QUERIES = 50  # for more scopes, one query reads the polls of all
_MAX_NAMED = 5  # scopes or VMs in a warning
_MAX_SILENCES_EXPLAINED = 3  # scopes of which a warning says since when no client polls
_MAX_HOSTS_READ = 50  # whose other VMs are searched


def confirmation_warnings(context: PortalContext, form: Form, events: Sequence[PreviewedEvent]) -> tuple[str, ...]:
    """Return the sentences that the confirmation of a form shows first, the most serious ones first."""
    return (
        *([form.danger] if form.danger else []),
        *preview_warnings(events),
        *_silent_scope_warnings(context, events),
        *_short_notice_warnings(context, events),
        *_unaffected_vm_warnings(context, events),
    )


def _short_notice_warnings(context: PortalContext, events: Sequence[PreviewedEvent]) -> Iterator[str]:
    """Warns of events with less notice than Azure gives; one sentence per kind and notice."""
    counts: defaultdict[tuple[str, int, int], int] = defaultdict(int)
    for event in events:
        notice_s, minimum_s = math.floor(event.not_before - event.published_at), _minimum_notice_s(context, event)
        if event.kind is not None and event.starts_at != event.published_at and notice_s < minimum_s:
            counts[event.kind, notice_s, minimum_s] += 1
    for (kind, notice_s, minimum_s), count in list(counts.items())[:_MAX_NAMED]:
        what = f"1 {kind} has" if count == 1 else f"{count} {kind} events have"
        notice = f"{duration_text(notice_s)} of notice" if notice_s >= 1 else "no notice"
        yield f"{what} {notice}, less than the minimum of {duration_text(minimum_s)} that Azure gives."


def _minimum_notice_s(context: PortalContext, event: PreviewedEvent) -> int:
    rules = CAUSE_RULES[Cause(event.cause)]
    if rules.kind is not Kind.TERMINATE:
        return rules.minimum_notice_s
    vm = context.store.vm(vm_key_in_scope(event.scope, event.vms[0]))
    return vm.terminate_notice_min * 60 if vm is not None else 0


def _silent_scope_warnings(context: PortalContext, events: Sequence[PreviewedEvent]) -> Iterator[str]:
    """Warns of scopes in which no client polls: no handler there would see the notice."""
    listed = dict.fromkeys(event.scope for event in events if event.listed and event.starts_at != event.published_at)
    polls = _polls_by_scope(context, listed)
    silent = [
        (scope_id, last) for scope_id in listed if (last := _describe_silence(context, polls[scope_id])) is not None
    ]
    if len(silent) <= _MAX_SILENCES_EXPLAINED:
        for scope_id, last in silent:
            yield f"No handler is polling in {_name_of_scope(context, scope_id)}: {last}."
    else:
        titles = [_name_of_scope(context, scope_id) for scope_id, _ in silent[:_MAX_NAMED]]
        named = first_names(titles, _MAX_NAMED, total=len(silent))
        yield f"No handler is polling in {len(silent)} of {len(listed)} scopes: {named}."


def _name_of_scope(context: PortalContext, scope_id: str) -> str:
    scope = context.store.scope(scope_id)
    return scope_name(scope) if scope else scope_name_from_id(scope_id)


def _polls_by_scope(context: PortalContext, scope_ids: Collection[str]) -> dict[str, list[LastPoll]]:
    if len(scope_ids) <= _MAX_SCOPE_QUERIES:
        return {scope_id: context.store.last_polls(scope_id=scope_id) for scope_id in scope_ids}
    polls: dict[str, list[LastPoll]] = {scope_id: [] for scope_id in scope_ids}
    for poll in context.store.last_polls():
        if poll.scope_id in polls:
            polls[poll.scope_id].append(poll)
    return polls


def _describe_silence(context: PortalContext, polls: Sequence[LastPoll]) -> str | None:
    if not polls:
        return "no client has polled yet"
    pace_of = context.dependencies.pace_of
    silent_s = min(silent_seconds(poll, pace_of(poll.vm), context.now()) for poll in polls)
    return f"the last poll was {duration_text(silent_s)} ago" if silent_s > SILENCE_LIMIT_S else None


def _unaffected_vm_warnings(context: PortalContext, events: Sequence[PreviewedEvent]) -> Iterator[str]:
    """Names other VMs on the hosts under maintenance, which the request does not affect."""
    affected = {(event.scope, name.casefold()) for event in events for name in event.vms}
    hosts = list(dict.fromkeys(event.host for event in events if event.host))
    others = {
        host: [vm.name for vm in context.store.vms(host=host) if (vm.scope_id, vm.name.casefold()) not in affected]
        for host in hosts[:_MAX_HOSTS_READ]
    }
    names = [name for on_host in others.values() for name in on_host]
    if names:
        where = f"host {hosts[0]}" if len(hosts) == 1 else f"one of the {len(hosts)} hosts"
        yield f"Also on {where}, but not affected: {first_names(names, _MAX_NAMED)}."


_MAX_KEYS_PER_PRINCIPAL = 300  # per user, so that one user's keys do not push out another's

ResultFuture = asyncio.Future[str]


class IdempotencyKeys:
    """Keys of confirmation pages, so that a button pressed twice submits once; at most 300 per user."""

    def __init__(self) -> None:
        # Principal id → key → the result; None until the action runs.
        self._keys: defaultdict[str, OrderedDict[str, ResultFuture | None]] = defaultdict(OrderedDict)

    def issue(self, principal_id: str) -> str:
        """Return a new random key for this user, who keeps the 300 newest ones."""
        key = secrets.token_urlsafe(16)
        keys = self._keys[principal_id]
        keys[key] = None
        while len(keys) > _MAX_KEYS_PER_PRINCIPAL:
            keys.popitem(last=False)
        return key

    def is_known(self, principal_id: str, key: str) -> bool:
        """Return whether the key was issued to this user and not dropped since; a used key stays known."""
        return key in self._keys.get(principal_id, ())

    async def run_once(self, principal_id: str, key: str, action: Callable[[], Awaitable[str]]) -> str:
        """Run `action` for the first call with this key; later calls wait for it and return its result."""
        # An unknown key counts as a new one: check `is_known` first.
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


_MAX_BATCHES_SHOWN = 20
_MAX_EVENTS_PER_WAVE = 20
_MAX_LISTED_KINDS = 3  # in the summary of a batch


class SubmittedValue(msgspec.Struct, frozen=True, kw_only=True):
    """One value that the user entered in a form; the confirmation submits it again as a hidden field."""

    name: str  # the name of the field; it may occur several times
    value: str  # as entered


class PreviewedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a preview that would be published together, for the confirmation page."""

    number: int  # from 1
    title: str  # what is done to how many VMs, such as `Reboot of 12 VMs`
    update_domains: tuple[int, ...]  # of its VMs, each once, ascending
    published_at: Timestamp  # of its first event
    not_before: Timestamp | None  # the earliest start without an approval, of events with notice; None: none has notice
    over_at: Timestamp | None  # when its last event is over; None: after the end of the preview
    events: tuple[PreviewedEvent, ...]  # the first 20
    events_omitted: int  # how many more there are


class ConfirmationPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page that previews a form and asks the user to confirm it."""

    name: str  # the name of the form
    title: str  # that of the form
    button: str  # its label
    is_destructive: bool  # the button is red
    summary: str  # what would happen to how many VMs, in one line beside the button
    warnings: tuple[str, ...]  # sentences, such as that no VM of a scope polls; the most serious ones first
    sentences: tuple[str, ...]  # what else would happen
    batches: tuple[PreviewedBatch, ...]  # the first 20 batches; () if there is nothing to publish, or no preview
    batches_omitted: int  # how many more there are
    diagram: WaveDiagram | None  # of a rollout: its waves over time; None: another form, or its times are not known
    now: Timestamp
    values: tuple[SubmittedValue, ...]  # as the user entered them; the confirmation submits them again
    idempotency_key: str  # makes the submission run once
    note: str = ""  # why the user has to confirm again: the key is no longer known; "": it is the first time


async def confirmation_page(
    context: PortalContext, form: Form, call: HandlerCall, values: FormValues, key: str, note: str = ""
) -> ConfirmationPage:
    """Return the confirmation page of a form, with preview and warnings; does not perform the form."""
    preview = await _preview(context, form, call)
    warnings = confirmation_warnings(context, form, preview.events)
    batches = _batches(preview.events)
    return ConfirmationPage(
        name=form.name,
        title=form.title,
        button=form.button,
        is_destructive=bool(form.danger),
        summary=_summary(preview),
        warnings=warnings,
        sentences=tuple(sentence for sentence in preview.summary if sentence not in warnings),
        batches=batches[:_MAX_BATCHES_SHOWN],
        batches_omitted=max(0, len(batches) - _MAX_BATCHES_SHOWN),
        diagram=diagram_of_plan(preview.rollout_waves, context.now()),
        now=timestamp(context.now()),
        values=tuple(SubmittedValue(name=name, value=value) for name, texts in values.items() for value in texts),
        idempotency_key=key,
        note=note,
    )


async def _preview(context: PortalContext, form: Form, call: HandlerCall) -> Preview:
    if (route := form.preview_route(context.api_routes)) is None:
        assert not isinstance(form.preview, str)
        return _preview_without_events(context, form.preview(context, call))
    try:
        preview: Preview = await route.handler(context, call, **route.signature.parse(call))
    except DryRunTooLarge as error:
        message = message_for(error, Surface.PORTAL)
        return _preview_without_events(
            context, [f"There is no preview: {message}. You can send the request all the same."]
        )
    return preview if preview.summary else _preview_without_events(context, ["This affects no VM."])


def _preview_without_events(context: PortalContext, sentences: Iterable[str]) -> Preview:
    now = context.now()
    return Preview(
        now=timestamp(now), events=(), vms=0, over_at=timestamp(now), is_partial=False, summary=tuple(sentences)
    )


def _summary(preview: Preview) -> str:
    if not preview.events:
        return preview.summary[0]
    batches = preview.events[-1].batch
    affected = len({(event.scope, name) for event in preview.events for name in event.vms})
    text = _operations_text(preview.events) + (f" in {batches} batches" if batches > 1 else "")
    return f"{text} first, {preview.vms} VMs in all" if preview.is_partial and affected < preview.vms else text


def _batches(events: Iterable[PreviewedEvent]) -> tuple[PreviewedBatch, ...]:
    by_batch: defaultdict[int, list[PreviewedEvent]] = defaultdict(list)
    for event in events:
        by_batch[event.batch].append(event)
    return tuple(_previewed_batch(number, by_batch[number]) for number in sorted(by_batch))


def _previewed_batch(number: int, events: Sequence[PreviewedEvent]) -> PreviewedBatch:
    ends = [event.over_at for event in events]
    starts = [event.not_before for event in events if event.listed and event.starts_at != event.published_at]
    return PreviewedBatch(
        number=number,
        title=_operations_text(events),
        update_domains=tuple(sorted({event.update_domain for event in events})),
        published_at=events[0].published_at,
        not_before=min(starts, default=None),
        over_at=None if None in ends else max(filter(None, ends), default=None),
        events=tuple(events[:_MAX_EVENTS_PER_WAVE]),
        events_omitted=max(0, len(events) - _MAX_EVENTS_PER_WAVE),
    )


def _operations_text(events: Sequence[PreviewedEvent]) -> str:
    vms_by_kind: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for event in events:
        vms_by_kind[event.kind or verb_noun(event.verb)].update((event.scope, name) for name in event.vms)
    parts = [f"{kind} of {len(vms)} VM{'' if len(vms) == 1 else 's'}" for kind, vms in vms_by_kind.items()]
    return first_names(parts, _MAX_LISTED_KINDS)
