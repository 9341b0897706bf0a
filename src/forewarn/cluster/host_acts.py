"""Carries out orders of the active node with the hypervisor of this host, and reports about the host.

Orders carry the term of their sender. The highest term is stored before the first order of it is carried out, and
orders of older terms are refused: their sender was deposed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from forewarn.base.times import LabSeconds
from forewarn.cluster.bus import BusMessage
from forewarn.cluster.messages import (
    ActOrder,
    CompareCpus,
    CpuComparison,
    HostCapacity,
    HostFact,
    ListVms,
    OrderRefused,
    OrderReport,
    RecordPosition,
    VmListing,
    decode_to_host,
    encode_bus_message,
)
from forewarn.errors import ForewarnError, Rejected, Unavailable, full_message
from forewarn.machines.interface import (
    ActDone,
    ActNotTried,
    ActUnderWay,
    CapacityHypervisor,
    CpuHypervisor,
    Hypervisor,
    ObservingHypervisor,
)
from forewarn.machines.moves import MoveStep, SteppedHypervisor, StepReport

log = logging.getLogger(__name__)


# What a host node reports about its host: free memory, CPUs, and its VMs as the platform lists them.
#
# The active node chooses destinations by the first two, and finds changes that no act explains by the third.

_CAPACITY_REPORTS = 15  # a capacity that has not changed is in every 15th report, for an active node that is new
_MAX_CPUS = 32  # different ones in a report, which must fit into a message
_FOLLOW_AGAIN_S = 5.0  # real time, after the platform's changes could not be followed


class HostReports:
    """What the hypervisor of a host node knows about its host, for the node's reports."""

    def __init__(self, hypervisor: Hypervisor, host: str) -> None:
        self._capacity = hypervisor if isinstance(hypervisor, CapacityHypervisor) else None
        self._cpus = hypervisor if isinstance(hypervisor, CpuHypervisor) else None
        self._observing = _observing_hypervisor(hypervisor)
        self._host = host.casefold()
        self._last: HostCapacity | None = None
        self._reports_since = 0  # reports since the last one with a capacity
        self.changes = -1 if self._observing is None else 0

    def capacity(self) -> HostCapacity | None:
        """Return what the host has free and what its VMs need, for the next report; None if it has not changed.

        Call it once for each report, because it counts them: every 15th has it in any case.
        """
        if self._capacity is None:
            return None
        known = self._capacity
        free = {name.casefold(): mib for name, mib in known.free_mib.items()}
        is_silent = self._host in {name.casefold() for name in known.silent_hosts}
        vm_cpus = {} if self._cpus is None else dict(self._cpus.vm_cpus)
        cpus = tuple(sorted(set(vm_cpus.values()))[:_MAX_CPUS])
        needed = {vm: cpus.index(cpu) for vm, cpu in vm_cpus.items() if cpu in cpus}
        compares_cpus = self._cpus is not None and self._host in free  # before, its own CPU is not known
        found = HostCapacity(free.get(self._host), dict(known.vm_mib), is_silent, cpus, needed, compares_cpus)
        self._reports_since += 1
        if found == self._last and self._reports_since < _CAPACITY_REPORTS:
            return None
        self._last, self._reports_since = found, 0
        return found

    async def follow_changes(self) -> None:
        """Count the changes of VMs that the platform reports about this host, in `changes`, until cancelled."""
        if self._observing is None:
            return
        while True:
            try:
                async with aclosing(self._observing.changed_hosts()) as changed:
                    async for host in changed:
                        self.changes += host.casefold() == self._host
            except Exception:
                log.exception("changes of VMs on this host cannot be followed, trying again")
            await asyncio.sleep(_FOLLOW_AGAIN_S)


def _observing_hypervisor(hypervisor: Hypervisor) -> ObservingHypervisor | None:
    if isinstance(hypervisor, ObservingHypervisor) and hypervisor.observe_interval_s > 0:
        return hypervisor
    return None


async def answer_comparison(hypervisor: Hypervisor, host: str, request: CompareCpus, message: BusMessage) -> None:
    """Answer the active control node's request whether this host can run the CPUs of VMs on other hosts."""
    fits: list[bool | None] = [True] * len(request.cpus)
    if isinstance(hypervisor, CpuHypervisor):
        fits = [await hypervisor.can_run_cpu(host, cpu) for cpu in request.cpus]
    message.respond(encode_bus_message(CpuComparison(tuple(fits))))


async def answer_listing(hypervisor: Hypervisor, host: str, message: BusMessage) -> None:
    """Answer the active control node's request to list the VMs of this host."""
    observing = _observing_hypervisor(hypervisor)
    folded = host.casefold()
    reply = VmListing(text=f"the node of host {host} does not list VMs")
    if observing is not None:
        name = next((each for each in observing.observed_hosts if each.casefold() == folded), host)
        try:
            reply = VmListing(await observing.observe(name))
        except ForewarnError as error:
            reply = VmListing(text=full_message(error))
    message.respond(encode_bus_message(reply))


_ANSWER_S = 1.5  # real time: an order that takes longer is answered as under way, and continues
_RETRY_AFTER_S: LabSeconds = 1.0


class TermMemory(Protocol):
    """Remembers durably the highest term whose orders this host has obeyed, for each store (by its tag)."""

    def term_of(self, store_tag: str) -> int:
        """Return the highest term that was stored for the store with this tag; 0 if none was."""

    def store_term(self, store_tag: str, term: int) -> None:
        """Store this term for the store with this tag, durably, before it returns."""


class HostActs:
    """Carries out the active control node's orders on a host node, with the hypervisor of this host.

    `show` gets the scopes that come with an order before it is carried out, so that a VM that arrives here never sees
    an older document than on its source. Repeated orders for an act or step that is still running share its answer;
    later ones call the hypervisor again, which knows the act by its id.
    """

    def __init__(
        self,
        hypervisor: Hypervisor,
        terms: TermMemory,
        *,
        host: str = "",
        show: Callable[[Sequence[HostFact], RecordPosition], None],
    ) -> None:
        self._hypervisor, self._terms, self._host, self._show = hypervisor, terms, host, show
        self._running: dict[tuple[str, MoveStep | None], asyncio.Task[StepReport]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self.refused_for_term = 0  # orders so far

    def on_order(self, message: BusMessage) -> None:
        """Carry out an order and answer it, after 1.5 s of real time at most; returns at once."""
        try:
            order = decode_to_host(message.payload)
        except Rejected as error:
            log.warning("%s", error)
            return
        if isinstance(order, ListVms):
            self._spawn(answer_listing(self._hypervisor, self._host, message))
            return
        if isinstance(order, CompareCpus):
            self._spawn(answer_comparison(self._hypervisor, self._host, order, message))
            return
        refusal = self._check_term(order)
        if refusal is not None:
            message.respond(encode_bus_message(refusal))
            return
        # Before the act: a VM that arrives must not see an older document than on its source.
        if order.scopes:
            self._show(order.scopes, order.record)
        key = (order.act.id, order.step)
        task = self._running.get(key)
        # A repeated order joins the attempt that runs, or the act would be performed twice at a time.
        if task is None:
            task = self._running[key] = asyncio.get_running_loop().create_task(self._carry_out(order))
        self._spawn(self._answer(order, key, task, message))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        answering = asyncio.get_running_loop().create_task(work)
        self._answers.add(answering)
        answering.add_done_callback(self._answers.discard)

    async def close(self) -> None:
        """Cancel the calls of the hypervisor that are under way. End the subscription for orders first."""
        tasks = [*self._running.values(), *self._answers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_term(self, order: ActOrder) -> OrderRefused | None:
        known = self._terms.term_of(order.store_tag)
        if order.term < known:
            self.refused_for_term += 1
            return OrderRefused(f"this order has term {order.term}, and the host obeys term {known} already", known)
        if order.term > known:
            try:
                # On disk before the act: after a restart this host must still refuse the deposed node.
                self._terms.store_term(order.store_tag, order.term)
            except OSError as error:
                return OrderRefused(f"the term cannot be stored on this host ({error.strerror}): free some space")
        return None

    async def _carry_out(self, order: ActOrder) -> StepReport:
        if order.step is None:
            return StepReport.of(await self._hypervisor.perform(order.act, order.now))
        if not isinstance(self._hypervisor, SteppedHypervisor):
            return StepReport.of(ActDone(False, "the hypervisor of this host cannot move VMs to or from other hosts"))
        return await self._hypervisor.perform_step(order.act, order.step, order.given, order.now)

    async def _answer(
        self,
        order: ActOrder,
        key: tuple[str, MoveStep | None],
        task: asyncio.Task[StepReport],
        message: BusMessage,
    ) -> None:
        # Without cancelling it: the act goes on, and the next order asks how it is going.
        await asyncio.wait({task}, timeout=_ANSWER_S)
        reply: OrderReport | OrderRefused
        if not task.done():
            reply = OrderReport(StepReport.of(ActUnderWay(at=order.now + _RETRY_AFTER_S)))
        else:
            self._running.pop(key, None)
            reply = _reply_of(task)
        message.respond(encode_bus_message(reply))


def _reply_of(task: asyncio.Task[StepReport]) -> OrderReport | OrderRefused:
    match None if task.cancelled() else task.exception():
        case None if task.cancelled():
            return OrderRefused("the node of this host stops")
        case None:
            return OrderReport(task.result())
        # The only refusal that is no attempt: nothing was asked of the hypervisor.
        case ActNotTried() as error:
            return OrderRefused(full_message(error))
        case Unavailable() as error:
            return OrderRefused(full_message(error), counts=True)
        case error:
            log.error("an act failed with an internal error", exc_info=error)
            return OrderRefused(f"{type(error).__name__}: {error}", counts=True)
