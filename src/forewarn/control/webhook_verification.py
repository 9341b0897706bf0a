"""Verifies a receiver: sends a test message, and validates that it agrees to receive messages.

Event Grid receivers must echo a validation code; CloudEvents receivers must answer OPTIONS with the allowed origin.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from uuid import uuid4

import msgspec

from forewarn.base.times import RealTime
from forewarn.control.webhook_message import (
    ReceiverUnreachable,
    SendRequest,
    WebhookRequest,
    build_request,
    signature_headers,
)
from forewarn.control.webhook_sender import describe_refusal
from forewarn.core.explain.notification import NotificationMessage
from forewarn.core.webhook import WebhookSchema, WebhookSubscription
from forewarn.errors import Refused

WEBHOOK_ORIGIN = "forewarn"  # the origin that a CloudEvents receiver must allow
TEST_EVENT_TYPE = "Forewarn.WebhookTest"
VALIDATION_EVENT_TYPE = "Microsoft.EventGrid.SubscriptionValidationEvent"
_SOURCE = "/forewarn"


class DeliveryTestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a test message to a webhook's receiver, from `ReceiverVerification.send_test`."""

    ok: bool  # whether the receiver answered 2xx
    status: int | None  # the HTTP status of its answer; None if there was no response
    text: str  # a clause for people, such as `it answered 200`


class ValidationResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON body with which an Event Grid receiver echoes the validation code, as `validationResponse`."""

    code: str = msgspec.field(name="validationResponse")  # the one that was sent


class ReceiverVerification:
    """Tests and validates receivers, with one request each and no retry; the webhook stays as it is."""

    def __init__(self, *, send: SendRequest, now: Callable[[], float], real_time: Callable[[], RealTime]) -> None:
        self._send = send
        self._now = now
        self._real_time = real_time

    async def send_test(self, webhook: WebhookSubscription) -> DeliveryTestResult:
        """Send one signed test message in the webhook's schema, and return how the receiver answered."""
        data = {"message": "A test: nothing happened to any VM."}
        request = build_request(webhook, self._new_message(TEST_EVENT_TYPE, "3.0", data), self._real_time())
        try:
            response = await self._send(request)
        except ReceiverUnreachable as error:
            return DeliveryTestResult(ok=False, status=None, text=str(error))
        text = f"it answered {response.status}" if response.is_success else describe_refusal(response)
        return DeliveryTestResult(ok=response.is_success, status=response.status, text=text)

    async def validate(self, webhook: WebhookSubscription) -> None:
        """Ask the receiver whether it agrees to receive messages; refuse, with what to do, if not.

        It agrees with 2xx: in the schema Event Grid by returning the validation code of the message, in CloudEvents by
        answering OPTIONS with the allowed origin `forewarn` or `*`.
        """
        try:
            if webhook.schema is WebhookSchema.CLOUD_EVENTS:
                await self._validate_cloud_events(webhook)
            else:
                await self._validate_event_grid(webhook)
        except ReceiverUnreachable as error:
            raise Refused(f"the receiver was not validated: {error}; start it, or add it without validation") from error

    async def _validate_event_grid(self, webhook: WebhookSubscription) -> None:
        code = secrets.token_urlsafe(24)
        message = self._new_message(VALIDATION_EVENT_TYPE, "1", {"validationCode": code})
        response = await self._send(
            build_request(webhook, message, self._real_time(), aeg_type="SubscriptionValidation")
        )
        if not response.is_success:
            raise _not_validated(describe_refusal(response))
        try:
            echo = msgspec.json.decode(response.body, type=ValidationResponse).code
        except (msgspec.DecodeError, UnicodeDecodeError):
            echo = ""
        if not hmac.compare_digest(echo.encode(errors="replace"), code.encode()):
            raise _not_validated("it did not return the validationCode as validationResponse")

    async def _validate_cloud_events(self, webhook: WebhookSubscription) -> None:
        headers = {
            "WebHook-Request-Origin": WEBHOOK_ORIGIN,
            **signature_headers(webhook.secret, b"", self._real_time()),
        }
        response = await self._send(WebhookRequest(url=webhook.url, headers=headers, method="OPTIONS"))
        if not response.is_success:
            raise _not_validated(describe_refusal(response))
        allowed = response.headers.get("webhook-allowed-origin", "").strip().lower()
        if allowed not in ("*", WEBHOOK_ORIGIN):
            raise _not_validated(f"it did not answer OPTIONS with WebHook-Allowed-Origin: {WEBHOOK_ORIGIN}")

    def _new_message(self, type_: str, version: str, data: dict[str, str]) -> NotificationMessage:
        return NotificationMessage(
            id=str(uuid4()),
            type=type_,
            topic=_SOURCE,
            source=_SOURCE,
            subject="webhook",
            at=self._now(),
            data=data,
            data_version=version,
        )


def _not_validated(why: str) -> Refused:
    return Refused(f"the receiver was not validated: {why}; fix it, or add it without validation")
