"""The acts of a host node: carries out orders of the active node with the hypervisor of this host.

Orders carry the term of their sender. The highest term is stored before the first order of it is carried out, and
orders of older terms are refused: their sender was deposed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from forewarn.cluster.bus import BusMessage
from forewarn.cluster.host_reports import answer_comparison, answer_listing
from forewarn.cluster.messages import (
    ActOrder,
    CompareCpus,
    HostFact,
    ListVms,
    OrderRefused,
    OrderReport,
    RecordPosition,
    decode_to_host,
    encode_bus_message,
)
from forewarn.errors import Rejected, Unavailable, full_message
from forewarn.machines.interface import ActDone, ActNotTried, ActUnderWay, Hypervisor
from forewarn.machines.moves import MoveStep, SteppedHypervisor, StepReport

log = logging.getLogger(__name__)
_ANSWER_S = 1.5  # real time: an order that takes longer is answered as under way, and continues
_RETRY_AFTER_S = 1.0  # lab time


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
