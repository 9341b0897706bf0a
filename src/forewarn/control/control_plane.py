"""Builds all use cases and the reconciler around one store, one clock and one hypervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from forewarn.base.clock import Clock, real_now
from forewarn.base.http_client import HttpClient
from forewarn.base.times import RealTime
from forewarn.control.access import AccessService
from forewarn.control.budgets import BudgetService
from forewarn.control.executor import ActExecutor, ActLimits, ActRetryPolicy
from forewarn.control.fault_registry import FaultRegistry
from forewarn.control.faults import FaultService, FaultStormService
from forewarn.control.fleet import FleetService, HostStatementService
from forewarn.control.guests import GuestService
from forewarn.control.health_probes import HealthProber
from forewarn.control.lab_clock import LabClockService
from forewarn.control.maintenance_configurations import MaintenanceConfigurationService
from forewarn.control.placement_index import PlacementIndex
from forewarn.control.reconciler import Reconciler
from forewarn.control.replays import ReplayService
from forewarn.control.requests import RequestKeys, RequestService
from forewarn.control.rollout_calendars import RolloutCalendars
from forewarn.control.rollout_requests import RolloutRequestService
from forewarn.control.rollouts import RolloutService
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.control.standing_order import StandingOrderService
from forewarn.control.unannounced_changes import UnannouncedChangeService
from forewarn.control.webhook_delivery import WebhookDispatcher
from forewarn.control.webhooks import WebhookService
from forewarn.core.decision import Policy
from forewarn.core.history import LastPoll
from forewarn.machines.interface import Hypervisor, VerbSupport, destination_hints
from forewarn.store.interface import AppliedCommit, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlInputs:
    """What a control plane needs besides store, clock and hypervisor; its builder passes it."""

    new_id: Callable[[], str]  # returns a new GUID, in upper case, at each call
    polls: Callable[[], list[LastPoll]] = field(default=list)  # returns the latest poll of each VM; default: no polls
    lab_addresses: bool = False  # give each VM an address on the loopback network, by which a lab knows it
    real_time: Callable[[], RealTime] = real_now  # for transport faults and webhooks
    http_client: HttpClient = field(default_factory=HttpClient)  # for webhooks and health checks
    allow_command_checks: bool = False  # health checks of rollouts may run commands; without effect on a given `prober`
    prober: HealthProber | None = None  # performs health checks; None: a new one with `http_client`
    was_interrupted: bool = True  # VMs could not poll before this start, if an earlier process used the store
    may_act: Callable[[], bool] = lambda: True  # no act begins while False; call `reconciler.wake()` once it is True


class ControlPlane:
    """All use cases on one store, with the reconciler and the webhook dispatcher.

    The caller runs `reconciler.run()`, `webhook_delivery.run()` and `unannounced_changes.run()` as tasks, ends them,
    and calls `close`. The constructor reads the store, subscribes to its commits and queues the acts that an earlier
    process left unfinished; nothing is performed before the reconciler runs. The caller stays the owner of store, clock
    and hypervisor.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        hypervisor: Hypervisor,
        inputs: ControlInputs,
        policy: Policy = Policy(),
        retry: ActRetryPolicy = ActRetryPolicy(),
        limits: ActLimits = ActLimits(),
        verbs: VerbSupport | None = None,
    ) -> None:
        self.store, self.clock, new_id = store, clock, inputs.new_id
        self.placement = PlacementIndex(store)
        registry = self._fault_registry = FaultRegistry(store)
        transactions = self.transactions = ScopeTransactions(
            store=store, clock=clock, policy=policy, placement=self.placement, faults=registry
        )
        wake_event = asyncio.Event()
        self.executor = ActExecutor(
            hypervisor=hypervisor,
            clock=clock,
            wake=wake_event.set,
            needs_failed_host=self.placement.needs_failed_host,
            may_act=inputs.may_act,
            retry=retry,
            limits=limits,
        )
        self.budgets = BudgetService(transactions)
        self.maintenance_configurations = MaintenanceConfigurationService(transactions=transactions)
        self.rollout_calendars = RolloutCalendars(transactions, self.maintenance_configurations)
        self.rollouts = RolloutService(
            transactions=transactions,
            new_id=new_id,
            budgets=self.budgets,
            calendars=self.rollout_calendars,
            prober=inputs.prober or HealthProber(inputs.http_client, allow_commands=inputs.allow_command_checks),
            wake=wake_event.set,
        )
        self.faults = FaultService(
            transactions=transactions, registry=registry, new_id=new_id, real_time=inputs.real_time
        )
        self.replays = ReplayService(transactions=transactions, new_id=new_id)
        self.fault_storms = FaultStormService(transactions=transactions, registry=registry, faults=self.faults)
        self.reconciler = Reconciler(
            transactions=transactions,
            executor=self.executor,
            rollouts=self.rollouts,
            replays=self.replays,
            faults=self.faults,
            fault_storms=self.fault_storms,
            wake_event=wake_event,
        )
        self.verbs = verbs or VerbSupport.of(hypervisor)
        self._create_use_cases(transactions, hypervisor, inputs)
        self.dry_run_lock = asyncio.Lock()  # one dry run at a time: each takes a thread
        self._unsubscribe = self._follow_store(inputs.was_interrupted)

    def _create_use_cases(self, transactions: ScopeTransactions, hypervisor: Hypervisor, inputs: ControlInputs) -> None:
        store, clock, new_id = self.store, self.clock, inputs.new_id
        self.requests = RequestService(transactions=transactions, new_id=new_id, verbs=self.verbs)
        self.rollout_requests = RolloutRequestService(
            transactions=transactions,
            new_id=new_id,
            find_host=self.requests.host,
            verbs=self.verbs,
            prober=self.rollouts.health.prober,
        )
        self.standing_order = StandingOrderService(
            transactions=transactions, requests=self.rollout_requests, budgets=self.budgets, new_id=new_id
        )
        self.rollouts.standing_order = self.standing_order
        self.request_keys = RequestKeys(store)
        transactions.destination_hints = lambda: destination_hints(hypervisor, self.unreachable_hosts())
        self.host_statements = HostStatementService(transactions, self.requests.host, self.unreachable_hosts)
        self.unannounced_changes = UnannouncedChangeService(transactions=transactions, hypervisor=hypervisor)
        self.guests = GuestService(transactions, self.replays)
        self.fleet = FleetService(transactions=transactions, new_id=new_id, lab_addresses=inputs.lab_addresses)
        self.access = AccessService(transactions=transactions, new_id=new_id)
        self.webhook_delivery = WebhookDispatcher(
            store, client=inputs.http_client, now=clock.now, real_time=inputs.real_time
        )
        self.webhooks = WebhookService(transactions=transactions, new_id=new_id, webhook_delivery=self.webhook_delivery)
        self.lab_clock = LabClockService(clock=clock, store=store, reconciler=self.reconciler, polls=inputs.polls)

    def _follow_store(self, was_interrupted: bool) -> Callable[[], None]:
        unsubscribe = self.store.subscribe(self._on_commit)
        if was_interrupted and self.store.scope_ids():
            # An earlier process used this store. Events that came due since then wait for the grace period, because
            # no VM could poll meanwhile.
            self.transactions.resumed_at = self.clock.now()
        self.reconciler.resume_unfinished_acts()
        return unsubscribe

    def _on_commit(self, applied: AppliedCommit) -> None:
        self.transactions.on_commit(applied)
        self.placement.on_commit(applied)
        if self.budgets.is_used or applied.commit.saved:
            self.budgets.on_commit(applied)  # before the reconciler, whose rollouts wait for budgets
        if applied.commit.changes_configurations:
            self.maintenance_configurations.forget()
        self._fault_registry.on_commit(applied)
        if self.unannounced_changes.fleet is not None:
            self.unannounced_changes.fleet.on_commit(applied)
        self.reconciler.on_commit(applied)

    def unreachable_hosts(self) -> frozenset[str]:
        """Return the names of the hosts that do not answer the hypervisor, as observed or reported by acts."""
        return self.placement.unreachable_hosts() | self.executor.progress.unreachable_hosts()

    async def close(self) -> None:
        """Stop listening to the store, and cancel running acts and health checks; may be called twice.

        End the tasks of its `run()` methods before. The next control plane on this store performs the cancelled acts.
        """
        self._unsubscribe()
        await self.rollouts.health.close()
        await self.executor.close()
