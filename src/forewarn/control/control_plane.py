"""Builds all use cases and the reconciler around one store, one clock and one hypervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from forewarn.clock import Clock, read_real_time
from forewarn.control.access import AccessService
from forewarn.control.executor import ActExecutor, ActRetryPolicy
from forewarn.control.fault_registry import FaultRegistry
from forewarn.control.fault_storms import FaultStormService
from forewarn.control.faults import FaultService
from forewarn.control.fleet import FleetService
from forewarn.control.guests import GuestService
from forewarn.control.lab_clock import LabClockService
from forewarn.control.placement_index import PlacementIndex
from forewarn.control.reconciler import Reconciler
from forewarn.control.replays import ReplayService
from forewarn.control.requests import RequestService
from forewarn.control.rollouts import RolloutService
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.control.webhooks import WebhookService
from forewarn.core.decision import Policy
from forewarn.hypervisor.interface import Hypervisor
from forewarn.store.interface import AppliedCommit, LastPoll, Store
from forewarn.webhooks import WebhookDispatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlInputs:
    """What control takes from the world: chance, and what VMs were seen to ask."""

    new_id: Callable[[], str]  # GUIDs, upper case
    polls: Callable[[], list[LastPoll]] = field(default=list)
    lab_addresses: bool = False  # give VMs addresses on the loopback network
    real_time: Callable[[], float] = read_real_time  # for what lasts in real time (spec §12)


class ControlPlane:
    """The use cases (`requests`, `guests`, `fleets`, `access`, `webhooks`, `faults`, `storms`, `labtime`), and what

    goes on by itself: the `reconciler`, and the `outbox` that tells webhooks.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        hypervisor: Hypervisor,
        outside: ControlInputs,
        policy: Policy = Policy(),  # noqa: B008 (frozen)
        retry: ActRetryPolicy = ActRetryPolicy(),  # noqa: B008 (frozen)
    ) -> None:
        self.store = store
        self.clock = clock
        self.placement = PlacementIndex(store)
        self._fault_registry = FaultRegistry(store)
        self.transactions = ScopeTransactions(
            store=store, clock=clock, policy=policy, placement=self.placement, faults=self._fault_registry
        )
        woken = asyncio.Event()
        self.executor = ActExecutor(hypervisor=hypervisor, clock=clock, wake=woken.set, retry=retry)
        self.rollouts = RolloutService(desk=self.transactions, new_id=outside.new_id)
        self.faults = FaultService(
            desk=self.transactions, book=self._fault_registry, new_id=outside.new_id, real_time=outside.real_time
        )
        self.replays = ReplayService(desk=self.transactions, new_id=outside.new_id)
        self.fault_storms = FaultStormService(desk=self.transactions, book=self._fault_registry, faults=self.faults)
        self.reconciler = Reconciler(
            desk=self.transactions,
            executor=self.executor,
            rollouts=self.rollouts,
            replays=self.replays,
            faults=self.faults,
            storms=self.fault_storms,
            woken=woken,
        )
        self.requests = RequestService(desk=self.transactions, new_id=outside.new_id)
        self.guests = GuestService(self.transactions, self.replays)
        self.fleet = FleetService(desk=self.transactions, new_id=outside.new_id, lab_addresses=outside.lab_addresses)
        self.access = AccessService(desk=self.transactions, new_id=outside.new_id)
        self.webhook_delivery = WebhookDispatcher(store, real_time=outside.real_time)
        self.webhooks = WebhookService(desk=self.transactions, new_id=outside.new_id, outbox=self.webhook_delivery)
        self.lab_clock = LabClockService(clock=clock, store=store, reconciler=self.reconciler, polls=outside.polls)
        self.dry_run_lock = asyncio.Lock()  # one at a time: each takes a thread
        self._unsubscribe = store.subscribe(self._on_commit)
        if store.scope_ids():
            # Somebody ran before us: what came due meanwhile gives those who could not poll a moment to look.
            self.transactions.resumed_at = clock.now()
        self.reconciler.resume_unfinished_acts()

    def _on_commit(self, committed: AppliedCommit) -> None:
        self.transactions.on_commit(committed)
        self.placement.on_commit(committed)
        self._fault_registry.on_commit(committed)
        self.reconciler.on_commit(committed)

    async def close(self) -> None:
        self._unsubscribe()
        await self.executor.close()
