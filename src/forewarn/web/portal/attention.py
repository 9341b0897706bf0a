"""What needs a person now: VMs without a handler, missing approvals, failures, rollouts, hosts and the store.

Every scheduled event that the user may see is checked, so that the counts are those of the clients page; everything
else is counted in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlencode

from forewarn.base.duration import duration_text
from forewarn.base.times import LabSeconds, Timestamp, timestamp
from forewarn.base.wording import first_names
from forewarn.core.access import Right
from forewarn.core.cause import verb_noun
from forewarn.core.event import Event
from forewarn.core.explain.explanation import event_kind_text, join_names
from forewarn.core.explain.polling import EventAwareness, can_still_prepare
from forewarn.core.explain.status import rollout_title
from forewarn.core.fleet import Host, HostHealth
from forewarn.core.lifecycle import awaits_approval
from forewarn.core.request import MaintenanceRequest, RolloutState
from forewarn.core.resource_ids import ROOT_RESOURCE, vm_resource_id
from forewarn.web.polling_report import ExpectedEvent, expected_events
from forewarn.web.portal.context import PORTAL_PREFIX, PortalContext
from forewarn.web.portal.event_index import RECENT_S, FailedAct
from forewarn.web.portal.status_card import may_approve_event
from forewarn.web.views import BaseView

APPROVAL_LEAD_S: LabSeconds = 300.0  # before its NotBefore in which an event without an approval needs attention
_MAX_ROLLOUTS = 5  # stopped ones, the last


class AttentionLink(BaseView, frozen=True, kw_only=True):
    """A link of an item that needs attention: to a page with more about it, or to a form."""

    title: str  # the text of the link
    href: str  # a path of the portal

    @property
    def is_action(self) -> bool:
        """Whether the link leads to a form, and not to another page."""
        return self.href.startswith(f"{PORTAL_PREFIX}/forms/")


class AttentionItem(BaseView, frozen=True, kw_only=True):
    """One thing that needs a person, with a sentence and what can be done. Field names are JSON keys."""

    kind: str  # store, without-handler, failed, stopped, host-failed, approval, stalled, paused or host-degraded
    is_urgent: bool  # True for store, without-handler, failed, stopped and host-failed, False for the others
    count: int  # VMs (without-handler), acts (failed), events (approval) or hosts; 1 for a rollout or the store
    text: str  # a sentence for people
    until: Timestamp | None = None  # by when to act: NotBefore, for without-handler and approval; None: others
    links: tuple[AttentionLink, ...] = ()  # actions first


def runs_platform(context: PortalContext) -> bool:
    """Return whether the user has the platform right over everything."""
    return context.principal.may(Right.PLATFORM, ROOT_RESOURCE)


def _form_link(title: str, form: str, **values: str | Sequence[str]) -> AttentionLink:
    return AttentionLink(title=title, href=f"{PORTAL_PREFIX}/forms/{form}?{urlencode(values, doseq=True)}")


def _page_link(title: str, path: str, **query: str) -> AttentionLink:
    return AttentionLink(title=title, href=f"{PORTAL_PREFIX}{path}{'?' if query else ''}{urlencode(query)}")


async def find_attention(context: PortalContext) -> tuple[AttentionItem, ...]:
    """Return what needs a person, as far as the user may see it; urgent items first.

    There is one item per kind, but one for each rollout. An event for a VM without a handler does not count as one
    without an approval. A failed act counts until one succeeds on its VM. The indexes of the context must be built.
    """
    scheduled = list(context.events.scheduled(context.visible_scopes()))
    expected = await expected_events(context.store, context.dependencies.pace_of, scheduled)
    without_handler = {
        key: one
        for key, one in expected.items()
        if one.awareness is EventAwareness.NO_VM and context.can_see_present(key)
    }
    items = [
        *_store_items(context),
        *_without_handler_items(context, without_handler),
        *_failure_items(context),
        *_host_items(context, HostHealth.FAILED),
        *_approval_items(context, scheduled, {one.event.id for one in without_handler.values()}),
        *_rollout_items(context),
        *_host_items(context, HostHealth.DEGRADED),
    ]
    return tuple(sorted(items, key=lambda item: not item.is_urgent))


def next_attention_change(context: PortalContext) -> float | None:
    """Return the lab time at which the next visible event may begin to need approval; None if none will."""
    upcoming = context.events.scheduled_after(context.now() + APPROVAL_LEAD_S, context.visible_scopes())
    return None if upcoming is None else upcoming - APPROVAL_LEAD_S


def _store_items(context: PortalContext) -> Iterator[AttentionItem]:
    if not context.store_health.ok:
        yield AttentionItem(kind="store", is_urgent=True, count=1, text=context.store_health.text)


def _without_handler_items(
    context: PortalContext, without_handler: Mapping[str, ExpectedEvent]
) -> Iterator[AttentionItem]:
    if not without_handler:
        return
    names = [vm.name for vm in map(context.store.vm, list(without_handler)[:4]) if vm is not None]
    event_ids = list(dict.fromkeys(one.event.id for one in without_handler.values()))
    links = [_page_link("Show VMs", "/clients", only="without-handler")]
    if len(event_ids) == 1:
        links.insert(0, _page_link("Show event", f"/events/{event_ids[0]}"))
        if runs_platform(context):
            links.insert(0, _form_link("Withdraw", "withdraw", event=event_ids[0]))
    count = len(without_handler)
    have = "VM has an event" if count == 1 else "VMs have an event"
    yield AttentionItem(
        kind="without-handler",
        is_urgent=True,
        count=count,
        text=f"{count} {have} scheduled, and no handler is polling: {first_names(names, total=count)}.",
        until=timestamp(min(one.event.not_before for one in without_handler.values())),
        links=tuple(links),
    )


def _approval_items(
    context: PortalContext, events: Sequence[Event], without_handler: set[str]
) -> Iterator[AttentionItem]:
    latest = context.now() + APPROVAL_LEAD_S
    missing = [
        event
        for event in events
        if awaits_approval(event)
        and event.not_before <= latest
        and can_still_prepare(event)
        and event.id not in without_handler
    ]
    if not missing:
        return
    first = missing[0]
    links = [_page_link("Show event", f"/events/{first.id}") if len(missing) == 1 else _page_link("Show", "/timeline")]
    if len(missing) == 1 and may_approve_event(context, first):
        links.insert(0, _form_link("Approve", "approve", event=first.id))
    titles = [f"{event_kind_text(event)} of {join_names(event.vms)}" for event in missing[:4]]
    starts = "1 event starts" if len(missing) == 1 else f"{len(missing)} events start"
    yield AttentionItem(
        kind="approval",
        is_urgent=False,
        count=len(missing),
        text=f"{starts} soon without an approval: {first_names(titles, total=len(missing))}.",
        until=timestamp(first.not_before),
        links=tuple(links),
    )


def _failure_items(context: PortalContext) -> Iterator[AttentionItem]:
    failures = [
        failed
        for failed in context.events.failures_since(context.now() - RECENT_S)
        if context.can_see_present(failed.vm)
    ]
    if not failures:
        return
    first, count = failures[0], len(failures)
    phrases = [
        f"{verb_noun(failed.verb)} of {failed.name}{f' ({failed.note})' if failed.note else ''}"
        for failed in failures[:4]
    ]
    acts = "1 act failed" if count == 1 else f"{count} acts failed"
    yield AttentionItem(
        kind="failed",
        is_urgent=True,
        count=count,
        text=f"{acts} in the last 24 hours, with no success since: {first_names(phrases, total=count)}.",
        links=(
            *_retry_links(context, failures),
            _page_link("Show event", f"/events/{first.event_id}")
            if len({failed.event_id for failed in failures}) == 1
            else _page_link("Show history", "/history"),
        ),
    )


def _retry_links(context: PortalContext, failures: Sequence[FailedAct]) -> Iterator[AttentionLink]:
    """A link to the form that requests the same for these VMs again, if the user may, and they are few."""
    forms = {failed.verb.rules.form for failed in failures}
    form = forms.pop() if len(forms) == 1 else ""
    if not form or len(failures) > 10:
        return
    vms = [vm for failed in failures if (vm := context.store.vm(failed.vm)) is not None]
    if vms and context.principal.may_all(Right.OPERATE, map(vm_resource_id, vms)):
        yield _form_link("Try again", form, vm=[vm.key for vm in vms])


def _rollout_items(context: PortalContext) -> Iterator[AttentionItem]:
    if not context.can_see_everything():
        return
    now = context.now()
    for stopped in list(context.events.rollouts.stopped_since(now - RECENT_S))[-_MAX_ROLLOUTS:]:
        text = f"{_title(stopped.request)} stopped"
        why = stopped.request.rollout.reason if stopped.request.rollout is not None else ""
        yield _rollout_item("stopped", stopped.request, f"{text}: {why}." if why else f"{text}.", is_urgent=True)
    for tracker in context.events.rollouts.open_rollouts():
        stalled_s = tracker.stalled_s(now)
        if stalled_s is not None:
            text = f"{_title(tracker.request)} has made no progress for {duration_text(stalled_s)}."
            yield _rollout_item("stalled", tracker.request, text)
        elif tracker.rollout.progress is RolloutState.PAUSED:
            text = f"{_title(tracker.request)} is paused: it publishes no events until it is resumed."
            actions = [_form_link("Resume", "rollout-resume", rollout=tracker.request.id)]
            yield _rollout_item("paused", tracker.request, text, actions if runs_platform(context) else ())


def _rollout_item(
    kind: str, request: MaintenanceRequest, text: str, actions: Iterable[AttentionLink] = (), *, is_urgent: bool = False
) -> AttentionItem:
    links = (*actions, _page_link("Show rollout", f"/rollouts/{request.id}"))
    return AttentionItem(kind=kind, is_urgent=is_urgent, count=1, text=text, links=links)


def _title(request: MaintenanceRequest) -> str:
    assert request.rollout is not None
    title = rollout_title(request, request.rollout).replace(request.id, request.id[:8], 1)
    return f"R{title[1:]}"


def _host_items(context: PortalContext, health: HostHealth) -> Iterator[AttentionItem]:
    hosts = [host for host in context.control.placement.hosts() if host.health is health]
    if hosts and (visible := context.overview.visible_hosts(context.directory)) is not None:
        hosts = [host for host in hosts if host.name in visible]
    if not hosts:
        return
    names = first_names([host.name for host in hosts])
    is_single = len(hosts) == 1
    if health is HostHealth.FAILED:
        text = f"Host {names} has failed" if is_single else f"{len(hosts)} hosts have failed: {names}"
    else:
        text = (
            f"Host {names} is predicted to fail" if is_single else f"{len(hosts)} hosts are predicted to fail: {names}"
        )
    yield AttentionItem(
        kind=f"host-{health}",
        is_urgent=health is HostHealth.FAILED,
        count=len(hosts),
        text=f"{text}{_vms_left(context, hosts)}.",
        links=(
            *([_form_link("Repair", "repair", host=hosts[0].name)] if is_single and runs_platform(context) else ()),
            _page_link("Show host", f"/hosts/{hosts[0].name}")
            if is_single
            else _page_link("Show hosts", "/hosts", health=health),
        ),
    )


def _vms_left(context: PortalContext, hosts: Sequence[Host]) -> str:
    left = sum(context.control.placement.vm_count(host.name) for host in hosts)
    if not left or not context.can_see_everything():
        return ""
    return f"; {left} {'VM is' if left == 1 else 'VMs are'} still there"
