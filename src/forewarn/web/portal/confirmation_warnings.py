"""The warnings of a confirmation page: what a user must have read before they confirm a form."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from forewarn.base.duration import duration_text
from forewarn.base.wording import first_names, scope_name_from_id
from forewarn.core.cause import CAUSE_RULES, Cause
from forewarn.core.explain.polling import SILENCE_LIMIT_S
from forewarn.core.explain.preview import PreviewedEvent, preview_warnings
from forewarn.core.fleet import vm_key_in_scope
from forewarn.core.scope import scope_name
from forewarn.protocol.document import Kind
from forewarn.store.interface import LastPoll
from forewarn.web.polling_report import silent_seconds
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.form_definition import Form

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
