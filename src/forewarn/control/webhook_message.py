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
from forewarn.base.http_client import HttpClient, HttpLimits, HttpRequestFailed
from forewarn.base.times import RealTime
from forewarn.core.commit import Commit
from forewarn.core.event import Event
from forewarn.core.explain.notification import NotificationMessage, render_message
from forewarn.core.fleet import Vm
from forewarn.core.history import HistoryEntry
from forewarn.core.request import MaintenanceRequest
from forewarn.core.webhook import WebhookSchema, WebhookSubscription
from forewarn.errors import Unavailable


class WebhookStore(Protocol):
    """The part of `forewarn.store.Store` that webhooks need."""

    def webhooks(self) -> list[WebhookSubscription]: ...

    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]: ...

    def event(self, event_id: str) -> Event | None: ...

    def vm(self, key: str) -> Vm | None: ...

    def request(self, request_id: str) -> MaintenanceRequest | None: ...

    async def commit(self, commit: Commit) -> int: ...

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]: ...


class WebhookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request to a receiver, signed already."""

    url: str  # the address of the receiver
    headers: dict[str, str]  # by name; the signature is among them
    body: bytes = b""  # JSON; b"": none
    method: str = "POST"  # POST, or OPTIONS for the handshake of CloudEvents


class WebhookResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver's HTTP response, with the beginning of its body."""

    status: int  # the HTTP status code
    headers: dict[str, str] = {}  # names in lower case
    body: bytes = b""  # at most as much as `HttpLimits` allow

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx, so that the message counts as delivered."""
        return 200 <= self.status < 300


class ReceiverUnreachable(Unavailable):
    """The receiver gave no HTTP response, or may not be called; the message is a clause that calls it `it`."""


SendRequest = Callable[[WebhookRequest], Awaitable[WebhookResponse]]  # raises ReceiverUnreachable


def send_with(client: HttpClient, limits: HttpLimits) -> SendRequest:
    """Return the function that sends webhook requests with this HTTP client, within these limits."""

    async def send(request: WebhookRequest) -> WebhookResponse:
        try:
            response = await client.send(
                request.method, request.url, headers=request.headers, body=request.body, limits=limits
            )
        except HttpRequestFailed as error:
            raise ReceiverUnreachable(str(error)) from error
        return WebhookResponse(status=response.status, headers=dict(response.headers), body=response.body)

    return send


_CONTENT_TYPES = {
    WebhookSchema.EVENT_GRID: "application/json; charset=utf-8",
    WebhookSchema.CLOUD_EVENTS: "application/cloudevents+json; charset=utf-8",
}


def build_request(
    webhook: WebhookSubscription, message: NotificationMessage, now: RealTime, *, aeg_type: str = "Notification"
) -> WebhookRequest:
    """Build the signed POST request that delivers a message in the webhook's schema. Sends nothing."""
    body = render_message(message, webhook.schema)
    headers = {"Content-Type": _CONTENT_TYPES[webhook.schema], "X-Forewarn-Delivery": message.id}
    if webhook.schema is WebhookSchema.EVENT_GRID:
        headers["aeg-event-type"] = aeg_type
    return WebhookRequest(
        url=webhook.url, headers={**headers, **signature_headers(webhook.secret, body, now)}, body=body
    )


def signature_headers(secret: str, body: bytes, now: RealTime) -> dict[str, str]:
    """Return the headers, by name, that prove origin, integrity and age of a body; `now` is real time.

    X-Forewarn-Signature has `sha256=` and the hexadecimal HMAC-SHA256, with the secret as key, of the timestamp, a dot
    and the body.
    """
    timestamp = str(int(float(now)))
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return {
        "User-Agent": f"forewarn/{__version__}",
        "X-Forewarn-Timestamp": timestamp,
        "X-Forewarn-Signature": f"sha256={digest}",
    }
