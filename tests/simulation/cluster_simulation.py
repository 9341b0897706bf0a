"""Simulates a cluster in virtual time: control nodes, a lossy bus, host nodes, and crashes between any two messages.

VMs poll and approve at the node of their host. `simulate_cluster` returns the rules that did not hold. A planted fault
breaks the system on purpose: a checker that does not notice it would be worth nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

from forewarn.cluster.host_answers import HostFacts
from forewarn.cluster.host_streams import vms_by_host
from forewarn.cluster.messages import HostFact, HostScope, OrderReport, decode_order_reply
from forewarn.core.event import EventState
from forewarn.errors import ForewarnError
from forewarn.machines.ledger import EffectLedger
from forewarn.metadata.workers.messages import FaultsUpdate
from tests.simulation.cluster_schedule import (
    HOSTS,
    VMS,
    ApproveEvents,
    AskForVm,
    ClusterOperation,
    ClusterSchedule,
    CrashControlNode,
    CrashHostNode,
    CutOffHost,
    DisturbBus,
    StopBus,
    TakeOver,
)
from tests.simulation.invariants import Violation
from tests.support.cluster_world import ChangingTerm, ClusterWorld, ControlNode, MemoryTerms, RunningNode, run_cluster
from tests.support.memory_bus import BusFaults, MemoryBus, decode_order
from tests.support.world import a_host, a_vm

NEVER_BACK = "a VM is never shown an older document, or another one with the same incarnation"
APPROVALS_LAST = "an approval that was answered with 200 is in the store"
EFFECT_ONCE = "an act takes effect once over all ledgers"
RELEASED_FIRST = "a VM arrives on a host only after its source released it"
TERMS_GROW = "a host carries out no order of a deposed control node"
CATCHES_UP = "every node shows the committed state once the bus is quiet"
ACTS_END = "every act ends once the bus is quiet"
_CRASH_S = 5.0  # a node that does not receive enough messages to die by them dies after this time
_POLLS = 2  # after each operation
FLEET = tuple(
    a_vm(
        f"web-{number}",
        host=HOSTS[number % len(HOSTS)],
        address=f"10.0.0.{number + 1}",
        availability_set="web" if number < VMS // 2 else "",
        update_domain=number % 2,
    )
    for number in range(VMS)
)


class PlantedFault(StrEnum):
    """A defect that a checker must find."""

    NO_VERSION_RULE = "a node shows the facts that came last, whatever their version"
    LEDGER_FORGOTTEN = "a node that is started again has lost its ledger"
    TERMS_IGNORED = "a node obeys orders of any term"
    PUBLISHED_FIRST = "changes are published and answered before they are durable"


class _FactsOfAnyVersion(HostFacts):
    def _take(self, fact: HostFact) -> bool:
        if isinstance(fact, FaultsUpdate):
            return super()._take(fact)
        assert isinstance(fact, HostScope)
        self._newest.pop(fact.update.scope_id, None)
        return super()._take(fact)


class _AnyTerm(MemoryTerms):
    def term_of(self, store_tag: str) -> int:
        return 0


@dataclass(slots=True)
class ClusterResult:
    """What a simulation found, and what happened in it."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


def simulate_cluster(schedule: ClusterSchedule, planted: PlantedFault | None = None) -> ClusterResult:
    """Run a schedule in virtual time; the same schedule always gives the same result."""
    result = ClusterResult()

    async def scenario(world: ClusterWorld) -> None:
        await _ClusterSimulation(world, schedule, planted, result).run()

    run_cluster(scenario, vms=FLEET, hosts=[a_host(name) for name in HOSTS], seed=schedule.seed)
    return result


class _ClusterSimulation:
    """One run: performs the operations, and checks what VMs see and hosts do."""

    def __init__(
        self, world: ClusterWorld, schedule: ClusterSchedule, planted: PlantedFault | None, result: ClusterResult
    ) -> None:
        self._world, self._schedule, self._planted, self._result = world, schedule, planted, result
        self._chance = Random(schedule.seed + 1)
        self._nodes: dict[str, RunningNode] = {}
        self._ledgers: list[tuple[str, EffectLedger]] = []  # of all hosts, also those that were forgotten
        self._seen: dict[str, tuple[int, Any]] = {}  # VM → incarnation and document
        self._approved: set[str] = set()
        self._terms: dict[str, int] = {}  # host → the highest term of an order that it carried out
        self._deposed: list[tuple[float, ControlNode]] = []  # when each notices that it was deposed
        self._durable = [world.store, world.store]  # before the latest two operations
        self._awaited: tuple[MemoryBus, int, asyncio.Event] | None = None  # who dies after how many messages

    async def run(self) -> None:
        world = self._world
        world.broker.on_delivery, world.broker.on_reply = self._on_delivery, self._on_reply
        for host in HOSTS:
            await self._start_node(host)
        for operation in self._schedule.operations:
            self._durable = [self._durable[1], world.store.copy()]
            await self._end_deposed(world.loop.time())
            self._result.counts["operations"] += 1
            self._result.trace.append(f"{world.loop.time():.3f} {operation}")
            await self._perform(operation)
            concerned = [operation.vm] if isinstance(operation, AskForVm | ApproveEvents) else []
            for number in (*concerned, *self._chance.sample(range(VMS), _POLLS)):
                await self._poll(FLEET[number].name)
            await asyncio.sleep(operation.wait_s)
            for number in concerned:
                await self._poll(FLEET[number].name)
        await self._check_end()
        self._result.counts["messages delivered"] += world.broker.delivered
        self._result.counts["messages lost"] += world.broker.lost

    def _violate(self, rule: str, text: str) -> None:
        self._result.violations.append(Violation(rule, f"{self._world.loop.time():.3f} {text}"))

    async def _perform(self, operation: ClusterOperation) -> None:
        broker = self._world.broker
        match operation:
            case AskForVm(operation=requested, vm=vm):
                try:
                    await self._world.ask(requested, FLEET[vm].name)
                except ForewarnError:
                    pass  # too many for this VM, or it is being moved
            case ApproveEvents(vm=vm):
                await self._approve(FLEET[vm].name)
            case DisturbBus(loss=loss, repeat=repeat, max_delay_s=max_delay_s):
                broker.faults = BusFaults(loss, repeat, max_delay_s)
            case StopBus(down_s=down_s):
                broker.stop()
                await asyncio.sleep(down_s)
                broker.start()
            case CutOffHost(host=host, seconds=seconds):
                broker.cut_off(f"node-{HOSTS[host]}")
                await asyncio.sleep(seconds)
                broker.heal(f"node-{HOSTS[host]}")
            case CrashHostNode():
                await self._crash_node(HOSTS[operation.host], operation.messages, operation.down_s)
            case CrashControlNode():
                await self._crash_control(operation.messages, operation.down_s)
            case TakeOver(notices_after_s=notices_after_s):
                await self._take_over(notices_after_s)

    async def _start_node(self, host: str) -> None:
        world = self._world
        if self._planted is PlantedFault.TERMS_IGNORED:
            world.terms.setdefault(host, _AnyTerm())
        node = await world.start_node(host, wait=False)
        if self._planted is PlantedFault.NO_VERSION_RULE:
            node.node.facts = _FactsOfAnyVersion()
        self._nodes[host] = node
        if (host, world.ledgers[host]) not in self._ledgers:
            self._ledgers.append((host, world.ledgers[host]))

    async def _die(self, bus: MemoryBus, messages: int, kill: Callable[[], Any]) -> None:
        """Kill a process once it has received this many messages: nothing that it does then leaves it."""
        reached = asyncio.Event()
        if messages:
            self._awaited = (bus, messages, reached)
            try:
                async with asyncio.timeout(_CRASH_S):
                    await reached.wait()
            except TimeoutError:
                pass
            self._awaited = None
        await kill()

    async def _crash_node(self, host: str, messages: int, down_s: float) -> None:
        world, node = self._world, self._nodes[host]
        await self._die(node.bus, messages, node.kill)
        world.nodes.remove(node)
        self._result.counts["crashes of host nodes"] += 1
        if self._planted is PlantedFault.LEDGER_FORGOTTEN:
            del world.ledgers[host]
        await asyncio.sleep(down_s)
        await self._start_node(host)

    async def _crash_control(self, messages: int, down_s: float) -> None:
        world = self._world
        await self._die(world.active.bus, messages, world.active.kill)
        self._result.counts["crashes of control nodes"] += 1
        if self._planted is PlantedFault.PUBLISHED_FIRST:
            world.store = self._durable[0]
        await asyncio.sleep(down_s)
        await world.start_control()

    async def _take_over(self, notices_after_s: float) -> None:
        """Fence the store of the old control node, and start a new one.

        The lease of the old one has run out by then, as it knows itself, but what it sent is still on its way, and it
        still runs: it ends once it reads that another one has the lease.
        """
        world = self._world
        old = world.active
        await old.store.close()
        world.term.is_held = False
        world.term = ChangingTerm(number=world.term.number + 1)
        await world.start_control()
        self._result.counts["takeovers"] += 1
        self._deposed.append((world.loop.time() + notices_after_s, old))

    async def _end_deposed(self, now: float) -> None:
        """End the control nodes that have noticed by now that they were deposed."""
        for at, control in [each for each in self._deposed if each[0] <= now]:
            self._deposed.remove((at, control))
            await control.kill()

    async def _poll(self, name: str) -> None:
        node = self._nodes.get(self._location(name))
        if node is None or not node.node.is_serving:
            return
        answer = await self._world.poll(node, name)
        if answer.status != 200:
            return  # its host was started again, or the stream of its host is late
        self._result.counts["polls"] += 1
        before, document = self._seen.get(name, (0, None))
        if answer.incarnation < before or (answer.incarnation == before and answer.body != document):
            self._violate(NEVER_BACK, f"{name}: {answer.body} after {document}")
        self._seen[name] = (answer.incarnation, answer.body)

    async def _approve(self, name: str) -> None:
        node = self._nodes.get(self._location(name))
        if node is None or not node.node.is_serving:
            return
        listed = await self._world.poll(node, name)
        ids = [event["EventId"] for event in listed.events] if listed.status == 200 else []
        if ids and (await self._world.approve(node, name, *ids)).status == 200:
            self._approved.update(ids)
            self._result.counts["approvals"] += 1

    def _location(self, name: str) -> str:
        """The host where a VM runs, by the ledgers of the hosts; "" between its release and its arrival."""
        key, first = next((vm.key, vm.host) for vm in FLEET if vm.name == name)
        changes = [(-1.0, first)]
        for host, ledger in self._world.ledgers.items():
            for effect in ledger.effects(key):
                if effect.act_id.endswith("/release"):
                    changes.append((effect.ends_at, ""))
                elif effect.to_host == host:
                    changes.append((effect.ends_at, host))
        return max(change for change in changes if change[0] <= self._world.clock.now())[1]

    def _on_delivery(self, client: MemoryBus) -> None:
        if self._awaited is None or self._awaited[0] is not client:
            return
        bus, left, reached = self._awaited
        self._awaited = (bus, left - 1, reached)
        if left == 1:
            bus.is_closed = True  # nothing that it does from now on is seen by anybody
            reached.set()

    def _on_reply(self, subject: str, request: bytes, reply: bytes) -> None:
        """Check the term of an order that a host has accepted."""
        kind, _, host = subject.removeprefix("forewarn.").partition(".")
        if kind != "act" or not isinstance(decode_order_reply(reply), OrderReport):
            return
        term = decode_order(request).term
        self._result.counts["orders"] += 1
        if term < self._terms.get(host, 0):
            self._violate(TERMS_GROW, f"{host} obeyed term {term} after term {self._terms[host]}")
        self._terms[host] = max(term, self._terms.get(host, 0))

    async def _check_end(self) -> None:
        """Let everything come to rest, and check what is left."""
        world = self._world
        world.broker.faults = BusFaults()
        await self._end_deposed(math.inf)
        await world.active.control.reconciler.catch_up()
        if not await self._comes_true(self._shows_everything, within_s=15.0):
            self._violate(CATCHES_UP, "a node is behind")
        for vm in FLEET:
            await self._poll(vm.name)
        if not await self._comes_true(
            lambda: not any(event.unfinished_acts for event in world.store.events()), within_s=120.0
        ):
            self._violate(ACTS_END, "an act is still under way")
        events = {event.id: event for event in world.store.events()}
        for event_id in sorted(self._approved):
            event = events.get(event_id)
            if event is None or (event.approved_at is None and event.status is EventState.SCHEDULED):
                self._violate(APPROVALS_LAST, f"event {event_id}")
        self._check_effects()

    async def _comes_true(self, condition: Callable[[], bool], *, within_s: float) -> bool:
        deadline = self._world.loop.time() + within_s
        while not condition():
            if self._world.loop.time() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    def _shows_everything(self) -> bool:
        return all(_shown(node) == self._expected(host) for host, node in self._nodes.items())

    def _expected(self, host: str) -> dict[str, tuple[int, set[str]]]:
        found = {}
        for scope in self._world.store.scopes():
            if vms := vms_by_host(scope).get(host, ()):
                found[scope.id] = (scope.incarnation, set(vms))
        return found

    def _check_effects(self) -> None:
        effects = [(host, effect) for host, ledger in self._ledgers for effect in ledger.effects()]
        found = Counter(effect.act_id for _, effect in effects)
        for act_id, number in found.items():
            if number > 1:
                self._violate(EFFECT_ONCE, f"{act_id} took effect {number} times")
        for act in (act for event in self._world.store.events() for act in event.acts):
            if act.outcome is not None and act.outcome.ok and found[act.id] != 1:
                self._violate(EFFECT_ONCE, f"{act.id} is done, and took effect {found[act.id]} times")
            if act.to_host and found[act.id] and not found[f"{act.id}/release"]:
                self._violate(RELEASED_FIRST, f"{act.id} was not released")
        self._result.counts["effects"] += len(effects)


def _shown(node: RunningNode) -> dict[str, tuple[int, set[str]]]:
    scopes = node.node.facts.scopes.values()
    return {each.update.scope_id: (each.update.document.incarnation, set(each.update.vms)) for each in scopes}
