"""Fixtures: a webhook dispatcher over a world in virtual time, and real receivers on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from forewarn.base.http_client import HttpClient, HttpLimits, LocalTargets
from forewarn.base.times import RealTime
from forewarn.control.webhook_delivery import WebhookDispatcher
from forewarn.core.commit import Commit
from forewarn.core.request import RequestedOperation
from forewarn.core.webhook import WebhookSubscription
from forewarn.store import MemoryStore
from tests.support.fake_prober import FakeProber
from tests.support.webhook_receiver import WebhookReceiver
from tests.support.world import World, a_host, a_vm

SECRET = "a secret of more than sixteen characters"


class ControlledSleep:
    """A sleep that a test controls: each one lasts until the next call of `allow`."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._begun = asyncio.Condition()
        self._allowed = asyncio.Semaphore(0)

    async def __call__(self, wait_s: float) -> None:
        async with self._begun:
            self.taken.append(wait_s)
            self._begun.notify_all()
        await self._allowed.acquire()

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(30), self._begun:
            await self._begun.wait_for(lambda: len(self.taken) >= count)

    def allow(self) -> None:
        self._allowed.release()


class DeliveryWorld:
    """A world with a webhook dispatcher."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        vms = [a_vm("web", host="h1"), a_vm("db", host="h2")]
        self.prober = FakeProber()
        self.world = World(vms=vms, hosts=[a_host("h1"), a_host("h2")], store=store, prober=self.prober)
        self.retry_sleep = ControlledSleep()
        self.real_now = 5000.0
        self.dispatcher = self.new_outbox()

    def new_outbox(self) -> WebhookDispatcher:
        return WebhookDispatcher(
            self.world.store,
            client=HttpClient(local_targets=LocalTargets.LOOPBACK),
            now=lambda: self.world.now,
            limits=HttpLimits(timeout_s=5.0, body_timeout_s=0.2),
            real_time=lambda: RealTime(self.real_now),
            sleep=self.retry_sleep,
            random=lambda: 0.0,
        )

    def webhook_for(self, receiver: WebhookReceiver, webhook_id: str = "w", **facts: Any) -> WebhookSubscription:
        """A webhook with its cursor at the end of the history."""
        cursor = self.world.store.last_seq()
        return WebhookSubscription(
            **{"id": webhook_id, "url": receiver.url, "secret": SECRET, "cursor": cursor, **facts}
        )

    def hook(self, receiver: WebhookReceiver, webhook_id: str = "w", **facts: Any) -> WebhookSubscription:
        webhook = self.webhook_for(receiver, webhook_id, **facts)
        self.world.do(self.world.store.commit(Commit(webhooks=(webhook,))))
        return webhook

    async def restarting(self, vm: str) -> None:
        """Requests a restart and reconciles, inside the running event loop."""
        await self.world.control.requests.request_for_vms(RequestedOperation.RESTART, [self.world.vm(vm)], who="ann")
        await self.world.control.reconciler.run_until_settled()

    def restart_of(self, vm: str) -> None:
        """Runs a restart from Scheduled over Started to Completed."""
        event = self.world.ask(RequestedOperation.RESTART, vm)[0]
        self.world.approve(vm, event.id)
        self.world.advance(60)

    def cursor(self, webhook_id: str = "w") -> int:
        return next(hook.cursor for hook in self.world.store.webhooks() if hook.id == webhook_id)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.dispatcher.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def deliver(self, receiver: WebhookReceiver, count: int) -> list[Any]:
        """Runs until the receiver has accepted `count` messages and none is pending; returns them."""

        async def until() -> list[Any]:
            async with self.running():
                await asyncio.to_thread(receiver.wait_for, count)
                await self.at_rest()
            return receiver.accepted

        return self.world.do(until())

    async def at_rest(self) -> None:
        """Waits until no webhook has pending messages."""
        async with asyncio.timeout(30):
            while any(self.dispatcher.delivery_report(hook).pending for hook in self.world.store.webhooks()):
                await asyncio.sleep(0.001)


@pytest.fixture
def make_delivery() -> Iterator[Callable[..., DeliveryWorld]]:
    """Makes a DeliveryWorld over another store."""
    made: list[DeliveryWorld] = []

    def make(store: MemoryStore | None = None) -> DeliveryWorld:
        made.append(DeliveryWorld(store))
        return made[-1]

    yield make
    for delivery in made:
        delivery.world.close()


@pytest.fixture
def delivery(make_delivery: Callable[..., DeliveryWorld]) -> DeliveryWorld:
    return make_delivery()


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as receiver:
        yield receiver


@pytest.fixture
def receivers() -> Iterator[Callable[[], WebhookReceiver]]:
    made: list[WebhookReceiver] = []

    def make() -> WebhookReceiver:
        made.append(WebhookReceiver())
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop()
