"""Everything in this room, wired together around one store, one clock and one hypervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from forewarn.clock import Clock, read_real_time
from forewarn.control.access import Access
from forewarn.control.desk import Desk
from forewarn.control.executor import Executor, Retry
from forewarn.control.faultbook import FaultBook
from forewarn.control.faults import Faults
from forewarn.control.fleets import Fleets
from forewarn.control.guests import Guests
from forewarn.control.labtime import LabTime
from forewarn.control.placement import Placement
from forewarn.control.reconciler import Reconciler
from forewarn.control.replays import Replays
from forewarn.control.requests import Requests
from forewarn.control.rollouts import Rollouts
from forewarn.control.storms import Storms
from forewarn.control.webhooks import Webhooks
from forewarn.core.policy import Policy
from forewarn.hypervisor.seam import Hypervisor
from forewarn.outbox import Outbox
from forewarn.store.seam import Committed, Polled, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What control takes from the world: chance, and what VMs were seen to ask."""

    new_id: Callable[[], str]  # GUIDs, upper case
    polls: Callable[[], list[Polled]] = field(default=list)
    lab_addresses: bool = False  # give VMs addresses on the loopback network
    real_time: Callable[[], float] = read_real_time  # for what lasts in real time (spec §12)


class Control:
    """The use cases (`requests`, `guests`, `fleets`, `access`, `webhooks`, `faults`, `storms`, `labtime`), and what

    goes on by itself: the `reconciler`, and the `outbox` that tells webhooks.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        hypervisor: Hypervisor,
        outside: Outside,
        policy: Policy = Policy(),  # noqa: B008 (frozen)
        retry: Retry = Retry(),  # noqa: B008 (frozen)
    ) -> None:
        self.store = store
        self.clock = clock
        self.placement = Placement(store)
        self._book = FaultBook(store)
        self.desk = Desk(store=store, clock=clock, policy=policy, placement=self.placement, faults=self._book)
        woken = asyncio.Event()
        self.executor = Executor(hypervisor=hypervisor, clock=clock, wake=woken.set, retry=retry)
        self.rollouts = Rollouts(desk=self.desk, new_id=outside.new_id)
        self.faults = Faults(desk=self.desk, book=self._book, new_id=outside.new_id, real_time=outside.real_time)
        self.replays = Replays(desk=self.desk, new_id=outside.new_id)
        self.storms = Storms(desk=self.desk, book=self._book, faults=self.faults)
        self.reconciler = Reconciler(
            desk=self.desk,
            executor=self.executor,
            rollouts=self.rollouts,
            replays=self.replays,
            faults=self.faults,
            storms=self.storms,
            woken=woken,
        )
        self.requests = Requests(desk=self.desk, new_id=outside.new_id)
        self.guests = Guests(self.desk, self.replays)
        self.fleets = Fleets(desk=self.desk, new_id=outside.new_id, lab_addresses=outside.lab_addresses)
        self.access = Access(desk=self.desk, new_id=outside.new_id)
        self.outbox = Outbox(store, real_time=outside.real_time)
        self.webhooks = Webhooks(desk=self.desk, new_id=outside.new_id, outbox=self.outbox)
        self.labtime = LabTime(clock=clock, store=store, reconciler=self.reconciler, polls=outside.polls)
        self.rehearsing = asyncio.Lock()  # one at a time: each takes a thread
        self._unsubscribe = store.subscribe(self._hear)
        if store.scope_ids():
            # Somebody ran before us: what came due meanwhile gives those who could not poll a moment to look.
            self.desk.resumed_at = clock.now()
        self.reconciler.resume()

    def _hear(self, committed: Committed) -> None:
        self.desk.hear(committed)
        self.placement.hear(committed)
        self._book.hear(committed)
        self.reconciler.hear(committed)

    async def close(self) -> None:
        self._unsubscribe()
        await self.executor.close()
