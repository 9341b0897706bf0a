"""Letters: a message in its webhook's form, signed at the moment it goes out."""

from __future__ import annotations

import hashlib
import hmac

from forewarn import __version__
from forewarn.core.notification import Message, rendered
from forewarn.core.webhook import Schema, Webhook
from forewarn.outbox.seam import Letter

_CONTENT_TYPE = {
    Schema.EVENT_GRID: "application/json; charset=utf-8",
    Schema.CLOUD_EVENTS: "application/cloudevents+json; charset=utf-8",
}


def letter_for(webhook: Webhook, message: Message, now: float, *, aeg_type: str = "Notification") -> Letter:
    body = rendered(message, webhook.schema)
    headers = {"Content-Type": _CONTENT_TYPE[webhook.schema], "X-Forewarn-Delivery": message.id}
    if webhook.schema is Schema.EVENT_GRID:
        headers["aeg-event-type"] = aeg_type
    return Letter(url=webhook.url, headers={**headers, **signed(webhook.secret, body, now)}, body=body)


def signed(secret: str, body: bytes, now: float) -> dict[str, str]:
    """The headers by which a receiver knows that this is from us, unaltered, and how old it is."""
    timestamp = str(int(now))
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return {
        "User-Agent": f"forewarn/{__version__}",
        "X-Forewarn-Timestamp": timestamp,
        "X-Forewarn-Signature": f"sha256={digest}",
    }
