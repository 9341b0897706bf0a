"""Runs one sender per webhook, each in its own task, and wakes them after commits."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from forewarn.base.clock import real_now
from forewarn.base.http_client import HttpClient, HttpLimits
from forewarn.base.times import RealTime
from forewarn.control.webhook_message import WebhookStore, send_with
from forewarn.control.webhook_sender import DeliveryReport, SenderDependencies, WebhookSender
from forewarn.control.webhook_verification import ReceiverVerification
from forewarn.core.webhook import WebhookSubscription
from forewarn.errors import ForewarnError

log = logging.getLogger(__name__)
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
