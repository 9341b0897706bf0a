"""Webhook handlers: list, add, remove and test webhooks, with their delivery state."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from forewarn.base.times import Timestamp, timestamp
from forewarn.control.webhooks import WebhookSpec
from forewarn.core.limits import NonEmptyLongText, NonEmptyText
from forewarn.core.resource_ids import ROOT_RESOURCE, scope_resource_id, vm_resource_id
from forewarn.core.webhook import EventGridStatus, WebhookSchema, WebhookSubscription
from forewarn.errors import NotFound, Refused
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import GROUP_PREFIX, HandlerCall, StrictBody
from forewarn.web.views import BaseView


class NewWebhook(StrictBody, frozen=True, kw_only=True):
    """A webhook to add: its receiver, and which messages it gets.

    A message is sent if it passes all filters: `resource`, `statuses` and `opted_in_only`.
    """

    url: NonEmptyLongText  # http or https, at most 2,000 ASCII characters, without user, password and fragment
    schema: WebhookSchema = WebhookSchema.EVENT_GRID  # the format of its messages
    resource: NonEmptyText = ROOT_RESOURCE  # a resource id, the name of a VM, set or cloud service, or group:NAME
    statuses: Annotated[tuple[EventGridStatus, ...], Meta(max_length=20)] = ()  # statuses of events; empty: all
    opted_in_only: bool = False  # only events of VMs whose policy publishes outside
    rollouts: bool | None = None  # also rollouts, for `resource` `/` only; null: if no other field filters
    secret: Annotated[str, Meta(max_length=500)] = ""  # signs messages; 16 printable characters or more; "": a new one
    from_start: bool = False  # send the history from its beginning, not from now on
    validate: bool = False  # send a validation request first, and add the webhook only if the receiver agrees


class WebhookView(BaseView, frozen=True, kw_only=True):
    """A webhook, and the state of its delivery since the service started.

    Durations are seconds of real time. The secret is not shown.
    """

    id: str  # a GUID, lower case
    url: str  # with `…` in place of its query, which may contain a password
    schema: WebhookSchema
    resource: str  # a resource id: only events of VMs within it
    statuses: tuple[EventGridStatus, ...]  # statuses of events that are sent; never empty
    opted_in_only: bool  # only events of VMs whose policy publishes outside
    rollouts: bool  # also what happens to rollouts themselves, such as paused, aborted, completed or on hold
    created_by: str  # who added it
    created_at: Timestamp
    last_delivery_ago_s: float | None  # since the last successful delivery; None if there was none
    failures: int  # failed deliveries in a row, since the last success
    error: str  # the error of the last failure; "" after a success
    next_attempt_in_s: float | None  # None: the last delivery succeeded, or there was none
    pending: int  # messages that wait for delivery, among the next 1,000 history entries
    pending_at_least: bool  # more messages may be pending


class WebhookWithSecretView(WebhookView, frozen=True, kw_only=True):
    """A new webhook (fields of WebhookView), and the secret that signs its messages, shown only here."""

    secret: str  # in plain text


class WebhooksView(BaseView, frozen=True, kw_only=True):
    """All webhooks, in the order they were added."""

    webhooks: tuple[WebhookView, ...]


class WebhookTestView(BaseView, frozen=True, kw_only=True):
    """How the receiver of a webhook responded to a test message."""

    id: str  # the id of the webhook
    ok: bool  # the receiver accepted the message
    status: int | None  # the HTTP status; None if there was no response
    text: str  # the result in words


async def list_webhooks(context: RequestContext, call: HandlerCall) -> WebhooksView:
    """List the webhooks and the state of their delivery."""
    return WebhooksView(
        webhooks=tuple(WebhookView(**_webhook_fields(context, webhook)) for webhook in context.store.webhooks())
    )


async def add_webhook(context: RequestContext, call: HandlerCall, body: NewWebhook) -> WebhookWithSecretView:
    """Add a webhook; its secret is in this response only."""
    spec = WebhookSpec(**{**msgspec.structs.asdict(body), "resource": _resolve_resource(context, body.resource)})
    webhook = await context.control.webhooks.add(spec, who=context.caller_name)
    return WebhookWithSecretView(secret=webhook.secret, **_webhook_fields(context, webhook))


async def remove_webhook(context: RequestContext, call: HandlerCall) -> WebhookView:
    """Remove a webhook."""
    view = WebhookView(**_webhook_fields(context, context.control.webhooks.find(call.path_params["id"])))
    await context.control.webhooks.remove(view.id, who=context.caller_name)
    return view


async def test_webhook(context: RequestContext, call: HandlerCall) -> WebhookTestView:
    """Send a test message to a webhook's receiver, and show its response."""
    webhook = context.control.webhooks.find(call.path_params["id"])
    result = await context.control.webhook_delivery.verification.send_test(webhook)
    return WebhookTestView(id=webhook.id, ok=result.ok, status=result.status, text=result.text)


def _resolve_resource(context: RequestContext, text: str) -> str:
    if text.strip().startswith("/"):
        return text
    if text.startswith(GROUP_PREFIX):
        return context.directory.unfiltered.find_group(text.removeprefix(GROUP_PREFIX))
    try:
        return vm_resource_id(context.directory.find(text))
    except NotFound:
        scope = context.find_scope(text)
    if not scope.present_vms:
        raise Refused(f"scope {text!r} has no VMs: give a resource id, such as /subscriptions/ID/resourceGroups/NAME")
    return scope_resource_id(scope.present_vms[0])


def _webhook_fields(context: RequestContext, webhook: WebhookSubscription) -> dict[str, Any]:
    dispatcher = context.control.webhook_delivery
    report, now = dispatcher.delivery_report(webhook), dispatcher.real_time()
    last_at, next_at = report.last_success_at, report.next_try_at
    return {
        "id": webhook.id,
        "url": _url_without_query(webhook.url),
        "schema": webhook.schema,
        "resource": webhook.resource,
        "statuses": webhook.statuses,
        "opted_in_only": webhook.opted_in_only,
        "rollouts": webhook.rollouts,
        "created_by": webhook.created_by,
        "created_at": timestamp(webhook.created_at),
        "last_delivery_ago_s": None if last_at is None else max(0.0, now - last_at),
        "failures": report.failures,
        "error": report.error,
        "next_attempt_in_s": None if next_at is None else max(0.0, next_at - now),
        "pending": report.pending,
        "pending_at_least": report.has_more,
    }


def _url_without_query(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query="…").geturl() if parts.query else url
