"""Trying a receiver out: one test message, and the handshakes by which it says that it wants to be told."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from uuid import uuid4

import msgspec

from forewarn.core.notification import Message
from forewarn.core.webhook import Schema, Webhook
from forewarn.errors import Refused
from forewarn.outbox.courier import refusal
from forewarn.outbox.letter import letter_for, signed
from forewarn.outbox.seam import Letter, Send, Unreached

ORIGIN = "forewarn"
TEST_TYPE = "Forewarn.WebhookTest"
VALIDATION_TYPE = "Microsoft.EventGrid.SubscriptionValidationEvent"
_SOURCE = "/forewarn"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a test message."""

    ok: bool
    status: int | None  # None: there was no answer
    text: str


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    code: str = msgspec.field(name="validationResponse")


class Trial:
    def __init__(self, *, send: Send, real_time: Callable[[], float]) -> None:
        self._send = send
        self._real_time = real_time

    async def test(self, webhook: Webhook) -> Verdict:
        data = {"message": "A test: nothing happened to any VM."}
        letter = letter_for(webhook, self._message(TEST_TYPE, "3.0", data), self._real_time())
        try:
            reply = await self._send(letter)
        except Unreached as error:
            return Verdict(ok=False, status=None, text=str(error))
        text = f"it answered {reply.status}" if reply.is_good else refusal(reply)
        return Verdict(ok=reply.is_good, status=reply.status, text=text)

    async def validate(self, webhook: Webhook) -> None:
        """Return if the receiver agrees to be told; else Refused, with what it should have done."""
        try:
            if webhook.schema is Schema.CLOUD_EVENTS:
                await self._ask_permission(webhook)
            else:
                await self._await_echo(webhook)
        except Unreached as error:
            raise Refused(f"the receiver was not validated: {error}; start it, or leave validation out") from error

    async def _await_echo(self, webhook: Webhook) -> None:
        code = secrets.token_urlsafe(24)
        message = self._message(VALIDATION_TYPE, "1", {"validationCode": code})
        reply = await self._send(letter_for(webhook, message, self._real_time(), aeg_type="SubscriptionValidation"))
        if not reply.is_good:
            raise _not_validated(refusal(reply))
        try:
            echo = msgspec.json.decode(reply.body, type=Echo).code
        except (msgspec.DecodeError, UnicodeDecodeError):
            echo = ""
        if not hmac.compare_digest(echo.encode(errors="replace"), code.encode()):
            raise _not_validated("it did not answer the validationCode with it as validationResponse")

    async def _ask_permission(self, webhook: Webhook) -> None:
        headers = {"WebHook-Request-Origin": ORIGIN, **signed(webhook.secret, b"", self._real_time())}
        reply = await self._send(Letter(url=webhook.url, headers=headers, method="OPTIONS"))
        if not reply.is_good:
            raise _not_validated(refusal(reply))
        allowed = reply.headers.get("webhook-allowed-origin", "").strip().lower()
        if allowed not in ("*", ORIGIN):
            raise _not_validated(f"it did not answer OPTIONS with WebHook-Allowed-Origin: {ORIGIN}")

    def _message(self, type_: str, version: str, data: dict[str, str]) -> Message:
        return Message(
            id=str(uuid4()),
            type=type_,
            topic=_SOURCE,
            source=_SOURCE,
            subject="webhook",
            at=self._real_time(),
            data=data,
            data_version=version,
        )


def _not_validated(why: str) -> Refused:
    return Refused(f"the receiver was not validated: {why}; mend it, or leave validation out")
