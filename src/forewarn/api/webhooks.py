"""Calls about webhooks: who outside is told what happens to events, and how that goes."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from forewarn.console.body import Strict, Text
from forewarn.console.call import Call
from forewarn.console.room import Room
from forewarn.console.views import View
from forewarn.control.webhooks import Wanted
from forewarn.core.notification import resource_above
from forewarn.core.resource import EVERYTHING, resource_of
from forewarn.core.webhook import Happening, Schema, Webhook
from forewarn.errors import NotFound, Refused


class NewWebhook(Strict, frozen=True, kw_only=True):
    url: Text
    schema: Schema = Schema.EVENT_GRID
    over: Text = EVERYTHING  # a resource id, or the name of a VM, a set or a cloud service
    happenings: Annotated[tuple[Happening, ...], Meta(max_length=20)] = ()  # none: all
    opted_in_only: bool = False  # only VMs whose policy publishes outside
    secret: Annotated[str, Meta(max_length=500)] = ""  # "": one is made
    from_start: bool = False  # told the history from its beginning, not from now on
    validate: bool = False  # added only if the receiver agrees


class WebhookView(View, frozen=True, kw_only=True):
    id: str
    url: str  # without its query, which may hold a password
    schema: Schema
    over: str
    happenings: tuple[Happening, ...]
    opted_in_only: bool
    by: str
    at: float
    told_ago_s: float | None  # in real time, as all spans here; None: not since the service was started
    failures: int  # in a row
    error: str  # of the last one
    next_try_in_s: float | None
    pending: int
    pending_at_least: bool  # there may be more


class WebhookWithSecret(WebhookView, frozen=True, kw_only=True):
    secret: str  # shown this once


class WebhooksView(View, frozen=True, kw_only=True):
    webhooks: tuple[WebhookView, ...]


class TriedView(View, frozen=True, kw_only=True):
    id: str
    ok: bool
    status: int | None  # None: there was no answer
    text: str


async def show_all(room: Room, call: Call) -> WebhooksView:
    """Every webhook, and how telling it goes."""
    return WebhooksView(webhooks=tuple(WebhookView(**_facts(room, webhook)) for webhook in room.store.webhooks()))


async def add(room: Room, call: Call, asked: NewWebhook) -> WebhookWithSecret:
    """Add a webhook, and show its secret: now or never."""
    wanted = Wanted(**{**msgspec.structs.asdict(asked), "over": _resource(room, asked.over)})
    webhook = await room.control.webhooks.add(wanted, who=room.who)
    return WebhookWithSecret(secret=webhook.secret, **_facts(room, webhook))


async def remove(room: Room, call: Call) -> WebhookView:
    """Remove a webhook: it is told nothing more."""
    view = WebhookView(**_facts(room, room.control.webhooks.find(call.names["id"])))
    await room.control.webhooks.remove(view.id, who=room.who)
    return view


async def test(room: Room, call: Call) -> TriedView:
    """Send a webhook one test message, and show what came of it."""
    webhook = room.control.webhooks.find(call.names["id"])
    verdict = await room.control.outbox.trial.test(webhook)
    return TriedView(id=webhook.id, ok=verdict.ok, status=verdict.status, text=verdict.text)


def _resource(room: Room, text: str) -> str:
    if text.strip().startswith("/"):
        return text
    try:
        return resource_of(room.directory.find(text))
    except NotFound:
        scope = room.scope(text)
    if not scope.present:
        raise Refused(f"scope {text!r} has no VMs: give a resource id, such as /subscriptions/ID/resourceGroups/NAME")
    return resource_above(scope.present[0])


def _facts(room: Room, webhook: Webhook) -> dict[str, Any]:
    report, now = room.control.outbox.report(webhook), room.control.outbox.real_time()
    told_at, next_at = report.last_success_at, report.next_try_at
    return {
        "id": webhook.id,
        "url": _shown(webhook.url),
        "schema": webhook.schema,
        "over": webhook.over,
        "happenings": webhook.happenings,
        "opted_in_only": webhook.opted_in_only,
        "by": webhook.by,
        "at": webhook.at,
        "told_ago_s": None if told_at is None else max(0.0, now - told_at),
        "failures": report.failures,
        "error": report.error,
        "next_try_in_s": None if next_at is None else max(0.0, next_at - now),
        "pending": report.pending,
        "pending_at_least": report.has_more,
    }


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query="…").geturl() if parts.query else url
