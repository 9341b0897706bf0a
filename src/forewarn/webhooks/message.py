"""Webhook requests and responses, the signature headers, and the part of the store webhooks need.

A request is signed when it is sent: HMAC-SHA256 over the timestamp and the body, so that receivers can check its
age.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from forewarn import __version__
from forewarn.core.commit import Commit
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.history import HistoryEntry
from forewarn.core.webhook import WebhookSchema, WebhookSubscription
from forewarn.errors import Unavailable
from forewarn.explain.notification import NotificationMessage, render_message


class WebhookStore(Protocol):
    """The part of a store that is needed here; both stores have it."""

    def webhooks(self) -> list[WebhookSubscription]: ...
    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]: ...
    def event(self, event_id: str) -> Event | None: ...
    def vm(self, key: str) -> Vm | None: ...
    async def commit(self, commit: Commit) -> int: ...
    def subscribe(self, hear: Callable[[Any], None]) -> Callable[[], None]: ...


class WebhookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request."""

    url: str
    headers: dict[str, str]
    body: bytes = b""
    method: str = "POST"


class WebhookResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What came back; of the body only the beginning."""

    status: int
    headers: dict[str, str] = {}  # names in lower case
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class ReceiverUnreachable(Unavailable):
    """Nothing that is an answer came back; the message says why, without the address."""


SendRequest = Callable[[WebhookRequest], Awaitable[WebhookResponse]]  # raises Unreached

_CONTENT_TYPES = {
    WebhookSchema.EVENT_GRID: "application/json; charset=utf-8",
    WebhookSchema.CLOUD_EVENTS: "application/cloudevents+json; charset=utf-8",
}


def build_request(
    webhook: WebhookSubscription, message: NotificationMessage, now: float, *, aeg_type: str = "Notification"
) -> WebhookRequest:
    body = render_message(message, webhook.schema)
    headers = {"Content-Type": _CONTENT_TYPES[webhook.schema], "X-Forewarn-Delivery": message.id}
    if webhook.schema is WebhookSchema.EVENT_GRID:
        headers["aeg-event-type"] = aeg_type
    return WebhookRequest(
        url=webhook.url, headers={**headers, **signature_headers(webhook.secret, body, now)}, body=body
    )


def signature_headers(secret: str, body: bytes, now: float) -> dict[str, str]:
    """The headers by which a receiver knows that this is from us, unaltered, and how old it is."""
    timestamp = str(int(now))
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return {
        "User-Agent": f"forewarn/{__version__}",
        "X-Forewarn-Timestamp": timestamp,
        "X-Forewarn-Signature": f"sha256={digest}",
    }
