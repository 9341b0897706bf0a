"""A courier for every webhook there is, each in a task of its own, woken by what is committed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from forewarn.clock import read_real_time
from forewarn.core.webhook import Webhook
from forewarn.errors import ForewarnError
from forewarn.outbox.courier import Courier, Means, Report
from forewarn.outbox.seam import Record, Send
from forewarn.outbox.trial import Trial
from forewarn.outbox.wire import Wire

log = logging.getLogger(__name__)
_AGAIN_S = 5.0


class Outbox:
    def __init__(
        self,
        record: Record,
        *,
        send: Send | None = None,
        real_time: Callable[[], float] = read_real_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        send = send or Wire().send
        self._means = Means(record=record, send=send, real_time=real_time, sleep=sleep, chance=chance)
        self._couriers: dict[str, Courier] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.trial = Trial(send=send, real_time=real_time)

    @property
    def real_time(self) -> Callable[[], float]:
        return self._means.real_time

    def report(self, webhook: Webhook) -> Report:
        """How telling it goes; of one that nobody tells yet, what awaits it."""
        return (self._couriers.get(webhook.id) or Courier(webhook, self._means)).report()

    async def run(self) -> None:
        stop = self._means.record.subscribe(self._hear)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    await self._staff(group)
                    await self._changed.wait()
        finally:
            stop()

    async def _staff(self, group: asyncio.TaskGroup) -> None:
        """A courier for each webhook, and for none that is gone."""
        try:
            webhooks = {webhook.id: webhook for webhook in self._means.record.webhooks()}
        except ForewarnError as error:
            log.warning("webhooks cannot be read, trying again: %s", error)
            await self._means.sleep(_AGAIN_S)
            self._changed.set()
            return
        for webhook_id in self._couriers.keys() - webhooks.keys():
            del self._couriers[webhook_id]
            self._tasks.pop(webhook_id).cancel()
        for webhook_id in webhooks.keys() - self._couriers.keys():
            courier = self._couriers[webhook_id] = Courier(webhooks[webhook_id], self._means)
            self._tasks[webhook_id] = group.create_task(courier.run())

    def _hear(self, committed: Any) -> None:
        if committed.commit.webhooks or committed.commit.removed_webhooks:
            self._changed.set()
        if committed.commit.entries:
            for courier in self._couriers.values():
                courier.wake()
