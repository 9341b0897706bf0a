"""Runs one sender per webhook, each in its own task, and wakes them after commits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from forewarn import __version__
from forewarn.base.clock import real_now
from forewarn.base.http_client import HttpClient, HttpLimits, HttpRequestFailed
from forewarn.base.times import RealTime
from forewarn.core.commit import Commit
from forewarn.core.event import Event
from forewarn.core.explain.notification import (
    NotificationMessage,
    event_vm_keys,
    is_subscribed,
    may_notify,
    may_notify_of_rollout,
    notification_for,
    notification_message,
    render_message,
    rollout_message,
)
from forewarn.core.fleet import Vm
from forewarn.core.history import HistoryEntry
from forewarn.core.request import MaintenanceRequest
from forewarn.core.webhook import WebhookCursor, WebhookSchema, WebhookSubscription
from forewarn.errors import ForewarnError, Refused, Unavailable

log = logging.getLogger(__name__)


# Webhook requests and responses, the signature headers, and the part of the store webhooks need.
#
# A request is signed when it is sent: HMAC-SHA256 over the timestamp and the body, so that receivers can check its
# age.


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


# Sends one webhook's messages in the order of the history, and retries with backoff.
#
# It retries a failed message as long as the webhook exists. A slow receiver delays no other webhook.

_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 1.0, 300.0
_BATCH_ENTRIES = 200  # history entries read at a time
_MAX_UNSAVED_ENTRIES = 1000  # the cursor is saved at least this often while no entry is for this webhook
_MAX_COUNTED_ENTRIES = 1000  # history entries scanned to count pending messages


def retry_delay_s(failures: int, random: float) -> float:
    """Return the delay before the next try, in seconds, after this many failures in a row (1 or more)."""
    full = min(_MAX_RETRY_DELAY_S, _MIN_RETRY_DELAY_S * 2.0 ** min(failures - 1, 30))
    return max(_MIN_RETRY_DELAY_S, full * (1 - random / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderDependencies:
    """What the senders of all webhooks share: the store, the HTTP client, real time, sleep and randomness."""

    store: WebhookStore  # has the history and the cursors
    send: SendRequest  # sends one request, and raises ReceiverUnreachable
    real_time: Callable[[], RealTime]  # POSIX seconds
    sleep: Callable[[float], Awaitable[None]]  # waits this many seconds of real time
    random: Callable[[], float]  # from 0 to 1


class DeliveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery state of one webhook since its sender was created; times are real, in POSIX seconds."""

    last_success_at: RealTime | None = None  # when the receiver last accepted a message; None: none yet
    failures: int = 0  # tries that failed in a row, since the last success
    error: str = ""  # the error of the last failure, for people; "" after a success
    next_try_at: RealTime | None = None  # None: the last delivery succeeded, or there was none
    pending: int = 0  # messages that wait for delivery, among the next 1000 history entries
    has_more: bool = False  # more than `pending` may be pending


class WebhookSender:
    """Delivers the messages of one webhook while `run` runs: in order, at least once, from its cursor on.

    Delivered means that the receiver answered 2xx; a message that fails delays those after it, and is retried for ever.
    The filters read the event and its VMs as they are stored now; messages about events that were pruned are left out.
    """

    def __init__(self, webhook: WebhookSubscription, dependencies: SenderDependencies) -> None:
        self._webhook = webhook
        self._dependencies = dependencies
        self._new_entries = asyncio.Event()
        self._position = webhook.cursor  # the last entry that was delivered or is not for this webhook
        self._saved_position = webhook.cursor  # the durable part of that
        self._last_report = DeliveryReport()

    def wake(self) -> None:
        """Tell `run` that the history has new entries. It does not shorten the delay after a failure."""
        self._new_entries.set()

    async def run(self) -> None:
        """Deliver the webhook's messages until it is cancelled; failures are logged and retried, never raised.

        It saves the webhook's cursor after each delivered message; if that fails, a restart repeats messages.
        """
        while True:
            self._new_entries.clear()
            wait = await self._try_batch()
            if wait is None:
                await self._new_entries.wait()
            elif wait:
                await self._dependencies.sleep(wait)
            else:
                await asyncio.sleep(0)  # lets other tasks run while it reads a long history

    async def _send_batch(self) -> float | None:
        """Delivers the messages of the next 200 history entries, up to the first failure."""
        # Returns the seconds to wait before the next batch: 0 if more entries may follow, None to wait for new entries.
        entries = self._dependencies.store.entries_after(self._position, _BATCH_ENTRIES)
        for entry in entries:
            message = self._message_to_send(entry)
            if message is not None:
                if (failure := await self._deliver(message)) is not None:
                    return self._record_failure(failure)
                self._record_success()
            self._position = entry.seq
            if message is not None or self._position - self._saved_position >= _MAX_UNSAVED_ENTRIES:
                await self._save_cursor()
        return 0 if len(entries) == _BATCH_ENTRIES else None

    def delivery_report(self) -> DeliveryReport:
        """Return the current delivery state, with the messages pending among the next 1000 history entries."""
        entries = self._dependencies.store.entries_after(self._position, _MAX_COUNTED_ENTRIES)
        pending = sum(self._message_to_send(entry) is not None for entry in entries)
        has_more = len(entries) == _MAX_COUNTED_ENTRIES
        return msgspec.structs.replace(self._last_report, pending=pending, has_more=has_more)

    async def _try_batch(self) -> float | None:
        try:
            return await self._send_batch()
        except ForewarnError as error:
            return self._record_failure(f"the history cannot be read: {error}")
        except Exception as error:
            log.exception("webhook %s: delivery failed with an internal error", self._webhook.id)
            return self._record_failure(f"forewarn failed with an internal error ({type(error).__name__}): see its log")

    def _message_to_send(self, entry: HistoryEntry) -> NotificationMessage | None:
        store = self._dependencies.store
        if self._webhook.rollouts and may_notify_of_rollout(entry):
            return rollout_message(entry, store.request(entry.request_id) if entry.request_id else None)
        event = store.event(entry.event_id) if may_notify(entry) else None
        if event is None:
            return None
        vms = [vm for vm in map(store.vm, event_vm_keys(event)) if vm is not None]
        notification = notification_for(entry, event, vms)
        if notification is None or not is_subscribed(self._webhook, notification, vms):
            return None
        return notification_message(notification)

    async def _deliver(self, message: NotificationMessage) -> str | None:
        request = build_request(self._webhook, message, self._dependencies.real_time())
        try:
            response = await self._dependencies.send(request)
        except ReceiverUnreachable as error:
            return str(error)
        return None if response.is_success else describe_refusal(response)

    def _record_success(self) -> None:
        if self._last_report.failures:
            log.info("webhook %s: delivered again after %d failures", self._webhook.id, self._last_report.failures)
        self._last_report = DeliveryReport(last_success_at=self._dependencies.real_time())

    def _record_failure(self, error: str) -> float:
        failures = self._last_report.failures + 1
        wait = retry_delay_s(failures, self._dependencies.random())
        if error != self._last_report.error:
            log.warning("webhook %s: delivery failed, retrying: %s", self._webhook.id, error)
        self._last_report = msgspec.structs.replace(
            self._last_report, failures=failures, error=error, next_try_at=self._dependencies.real_time() + wait
        )
        return wait

    async def _save_cursor(self) -> None:
        # If that fails, the next save covers it; a crash before then repeats some messages.
        position = self._position
        try:
            await self._dependencies.store.commit(
                Commit(cursors=(WebhookCursor(webhook_id=self._webhook.id, seq=position),))
            )
        except ForewarnError as error:
            log.warning("webhook %s: its cursor cannot be saved: %s", self._webhook.id, error)
        else:
            self._saved_position = position


def describe_refusal(response: WebhookResponse) -> str:
    """Return why a response other than 2xx is a failure: a clause for people, such as `it answered 500`."""
    if response.status == 410:
        return "it answered 410 (gone for good): remove the webhook if that is true"
    if 300 <= response.status < 400:
        return f"it answered {response.status}, and redirects are not followed: use the address it redirects to"
    return f"it answered {response.status}"


# Verifies a receiver: sends a test message, and validates that it agrees to receive messages.
#
# Event Grid receivers must echo a validation code; CloudEvents receivers must answer OPTIONS with the allowed origin.

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


_RETRY_S = 5.0  # after the webhooks could not be read


class WebhookDispatcher:
    """Sends messages to all webhooks while `run` runs: one `WebhookSender` task for each stored webhook.

    `now` is lab time, for messages that test or validate a receiver; `real_time` is the clock of signatures and
    reports. The caller keeps `client`.
    """

    def __init__(
        self,
        store: WebhookStore,
        *,
        client: HttpClient,
        now: Callable[[], float],
        limits: HttpLimits = HttpLimits(),
        real_time: Callable[[], RealTime] = real_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        send = send_with(client, limits)
        self._client = client
        self._dependencies = SenderDependencies(store=store, send=send, real_time=real_time, sleep=sleep, random=random)
        self._senders: dict[str, WebhookSender] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.verification = ReceiverVerification(send=send, now=now, real_time=real_time)

    def require_allowed(self, url: str) -> None:
        """Raise Rejected if this cannot be a URL, or names an address that the service may not call."""
        self._client.require_allowed(url)

    @property
    def real_time(self) -> Callable[[], RealTime]:
        """The clock of deliveries, a function that returns real time (POSIX seconds), not lab time."""
        return self._dependencies.real_time

    def delivery_report(self, webhook: WebhookSubscription) -> DeliveryReport:
        """Return the delivery state of a stored webhook; before its sender has started, only what is pending."""
        return (self._senders.get(webhook.id) or WebhookSender(webhook, self._dependencies)).delivery_report()

    async def run(self) -> None:
        """Deliver messages to all webhooks until cancelled; call it only once for each dispatcher."""
        unsubscribe = self._dependencies.store.subscribe(self._on_commit)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    await self._sync_senders(group)
                    await self._changed.wait()
        finally:
            unsubscribe()

    async def _sync_senders(self, group: asyncio.TaskGroup) -> None:
        """Starts a sender for each new webhook, and stops those of removed ones."""
        try:
            webhooks = {webhook.id: webhook for webhook in self._dependencies.store.webhooks()}
        except ForewarnError as error:
            log.warning("webhooks cannot be read, retrying: %s", error)
            await self._dependencies.sleep(_RETRY_S)
            self._changed.set()
            return
        for webhook_id in self._senders.keys() - webhooks.keys():
            del self._senders[webhook_id]
            self._tasks.pop(webhook_id).cancel()
        for webhook_id in webhooks.keys() - self._senders.keys():
            sender = self._senders[webhook_id] = WebhookSender(webhooks[webhook_id], self._dependencies)
            self._tasks[webhook_id] = group.create_task(sender.run())

    def _on_commit(self, committed: Any) -> None:
        if committed.commit.webhooks or committed.commit.removed_webhooks:
            self._changed.set()
        if committed.commit.entries:
            for sender in self._senders.values():
                sender.wake()
