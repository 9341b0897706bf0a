"""The hypervisor of the active node of a cluster: orders acts from host nodes, and waits for them.

An act on one host belongs to the node of that host for ever, so that a repeated order always meets the same ledger. A
move is ordered step by step from two nodes (`move_plan`). A node that does not answer is waited for: the act stays
under way, and its note says for how long the node has been silent.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from forewarn.base.times import LabSeconds, RealTime
from forewarn.cluster.bus import Bus, NoAnswer, Subjects, request_repeatedly
from forewarn.cluster.host_streams import host_id
from forewarn.cluster.messages import (
    ActOrder,
    HostScope,
    OrderRefused,
    RecordPosition,
    decode_order_reply,
    encode_bus_message,
)
from forewarn.cluster.move_plan import (
    MoveProgress,
    MoveSettlements,
    StepOrder,
    StepWait,
    after_fencing,
    after_silence,
    next_step,
)
from forewarn.cluster.node_registry import OBSERVE_INTERVAL_S, JoinedNode, ReportedHosts
from forewarn.core.event import Act
from forewarn.core.unannounced import HostObservation
from forewarn.errors import Rejected, Unavailable
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.moves import MoveHandover, MoveRelease, MoveStep, StepReport, is_move

log = logging.getLogger(__name__)
_ORDER_S = 3.0  # real time: how long one order is repeated
_REPEAT_S = 1.0
_RETRY_AFTER_S: LabSeconds = 1.0
_FENCE_INTERVAL_S = 30.0  # real time, between attempts to fence a host


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What the remote hypervisor asks the rest of the active node. Hosts are named as in the fleet."""

    term: Callable[[], int]  # the number of the lease
    is_held: Callable[[], bool]  # whether the lease is certainly held: else nothing is ordered
    store_tag: Callable[[], str]  # the tag of the store, which the terms belong to
    hosts: Callable[[], Iterable[str]]  # the hosts that have not failed
    bind_act: Callable[[Act, str], Awaitable[str]]  # return the stored host of an act, else store this one
    is_confirmed_down: Callable[[str], bool]  # whether an operator has confirmed that this host is down
    silence_text: Callable[[str], str]  # for people, such as `waits for the node of host h7, silent for 40 s`
    host_scopes: Callable[[str, str], tuple[HostScope, ...]]  # by host key and VM key: what the host needs, encoded
    record: Callable[[], RecordPosition] = RecordPosition  # which has those
    real_time: Callable[[], RealTime]
    failed_moves: Callable[[Act], Iterable[Act]]  # those of the act's VM since it last changed hosts, oldest first
    settlements: MoveSettlements  # what is stored about failed moves
    nodes: Callable[[], Iterable[JoinedNode]] = tuple  # those that have joined, with their last reports


class _NodeSilent(Exception):
    """The node of a host does not answer; the text says so, for people."""


class _LeaseUnsure(Exception):
    """The lease is not certainly held any more: nothing may be ordered, nor concluded from a silence."""


class RemoteHypervisor:
    """The `Hypervisor` of a cluster's active control node: orders acts from host nodes, and knows what they report."""

    def __init__(self, bus: Bus, subjects: Subjects, view: ClusterView) -> None:
        self._bus, self._subjects, self._view = bus, subjects, view
        self._moves: dict[str, MoveProgress] = {}  # by act id; those under way, after failed ones were settled
        self._fencing: dict[str, StepOrder] = {}  # by act id; fence commands that run on the destination
        self._fenced_at: dict[str, RealTime] = {}  # host → the last attempt
        self._reported = ReportedHosts(bus, subjects, view.nodes)

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        # A node that does not answer within 3 s of real time makes the act wait, and so do a refusal that is no
        # attempt, and a lease that is not certainly held. Before a move, earlier moves of the VM that failed are undone
        # or completed, so that none can end later; if they brought the VM to the destination, the act is done, else it
        # continues from where the VM is.
        host = act.from_host or act.to_host
        try:
            self._require_lease()
            if is_move(act):
                return await self._move(act, now)
            host = await self._host_of(act)
            return (await self._order(host, act, now)).answer
        except _LeaseUnsure:
            return ActUnderWay(at=now + _RETRY_AFTER_S, note="waits until this control node is active again")
        except _NodeSilent as silent:
            return ActUnderWay(at=now + _RETRY_AFTER_S, note=str(silent), waits_for_host=host)

    @property
    def observed_hosts(self) -> tuple[str, ...]:
        return self._reported.observed_hosts()

    @property
    def observe_interval_s(self) -> float:
        return OBSERVE_INTERVAL_S

    async def observe(self, host: str) -> HostObservation:
        return await self._reported.observe(host)

    def changed_hosts(self) -> AsyncGenerator[str, None]:
        return self._reported.changed_hosts()

    @property
    def free_mib(self) -> Mapping[str, int]:
        return {host: each.free_mib for host, each in self._reported.capacities().items() if each.free_mib is not None}

    @property
    def size_mib(self) -> Mapping[str, int]:
        return {}

    @property
    def vm_mib(self) -> Mapping[str, int]:
        return {vm: mib for each in self._reported.capacities().values() for vm, mib in each.vm_mib.items()}

    @property
    def incompatible_hosts(self) -> Mapping[str, frozenset[str]]:
        return self._reported.incompatible_hosts()

    async def compare_cpus(self) -> None:
        """Let nodes compare their CPUs with those that VMs on other hosts need; runs until cancelled."""
        await self._reported.compare_cpus()

    @property
    def silent_hosts(self) -> frozenset[str]:
        return frozenset(host for host, each in self._reported.capacities().items() if each.is_silent)

    async def close(self) -> None:
        self._moves.clear()
        self._fencing.clear()

    async def _host_of(self, act: Act) -> str:
        """The host whose node performs the act: that of the VM, else one that is chosen once and stored."""
        named = act.from_host or act.to_host
        if named:
            return named
        # By a hash of the act, so that acts spread over the hosts.
        hosts = sorted(self._view.hosts(), key=lambda name: hashlib.sha256(f"{act.id}/{name}".encode()).digest())
        bound = await self._view.bind_act(act, hosts[0] if hosts else "")
        if not bound:
            raise Unavailable(f"{act.name} is on no host, and the fleet has no host whose node could {act.verb} it")
        return bound

    def _require_lease(self) -> None:
        if not self._view.is_held():
            raise _LeaseUnsure

    async def _move(self, act: Act, now: float) -> ActDone | ActUnderWay:
        """Order steps until one is under way, the move is over, or it must wait."""
        progress = self._moves.get(act.id)
        if progress is None:
            source = await self._settle_failed_moves(act, now)
            if isinstance(source, StepWait):
                return ActUnderWay(at=now + _RETRY_AFTER_S, note=source.note, waits_for_host=source.host)
            # An earlier move, which was thought to have failed, has brought it there.
            if source == act.to_host:
                return ActDone(True, f"{act.name} has arrived on {act.to_host} with an earlier move")
            progress = self._moves[act.id] = MoveProgress(replace(act, from_host=source))
        following: StepOrder | StepWait | ActDone = self._fencing.pop(act.id, None) or next_step(progress)
        while isinstance(following, StepOrder):
            order = following
            # Durable before the order goes out: afterwards it may be too late to write anything.
            await self._keep_before(act, order)
            try:
                report = await self._order(order.host, progress.act, now, order.step, order.given)
            except _NodeSilent as silent:
                following = self._after_silence(progress, order, str(silent))
                continue
            except _LeaseUnsure:
                if order.step is MoveStep.FENCE:
                    self._fencing[act.id] = order
                raise
            if report.done is None:
                if order.step is MoveStep.FENCE:
                    self._fencing[act.id] = order  # its result counts only for a short time: ask for it again
                return report.answer
            if order.step is MoveStep.FENCE:
                following = after_fencing(progress, report.done)
            else:
                progress.record(order.step, report)
                following = next_step(progress)
            if order.step is MoveStep.RETURN:
                await self._view.settlements.keep_found(act, "")
        if isinstance(following, StepWait):
            return ActUnderWay(at=now + _RETRY_AFTER_S, note=following.note, waits_for_host=following.host)
        self._moves.pop(act.id, None)
        return following

    async def _keep_before(self, act: Act, order: StepOrder) -> None:
        """Store what the hosts cannot tell any more if the act is given up after this order."""
        if order.step is MoveStep.ACTIVATE and order.given.release is MoveRelease.FENCED:
            await self._view.settlements.keep_fenced(act)
        if order.step is MoveStep.RETURN:
            await self._view.settlements.keep_returning(act)

    async def _settle_failed_moves(self, act: Act, now: float) -> str | StepWait:
        """Make sure that given-up moves of this VM never complete later; return the host that it is on."""
        # A node that was out of reach may still have completed one. What was found is durable before the act begins,
        # and is not asked again: afterwards the VM is where the act brings it.
        moved_to, settlements = "", self._view.settlements
        for stored in self._view.failed_moves(act):
            failed = replace(stored, from_host=moved_to or stored.from_host)  # from where its steps were ordered
            self._moves.pop(failed.id, None)
            known = settlements.found(failed)
            found = await self._settle(failed, now) if known is None else known
            if isinstance(found, StepWait):
                return found
            if known is None:
                await settlements.keep_found(failed, found)
            moved_to = found or moved_to
        return moved_to or act.from_host

    async def _settle(self, failed: Act, now: float) -> str | StepWait:
        if failed.from_host == failed.to_host:
            return ""  # it never began: an earlier move had brought the VM there
        if self._view.settlements.is_returning(failed):
            return await self._take_back(failed, now)
        try:
            # The source first: only it knows whether it gave the VM up.
            released = await self._order(failed.from_host, failed, now, MoveStep.WITHDRAW)
        except _NodeSilent:
            return await self._settle_by_destination(failed, now, may_run_there=True)
        if released.done is None:
            return StepWait(f"an earlier move of {failed.name} must end first", failed.from_host)
        # The source has not given it up, and never will. What the destination has prepared is undone.
        if released.handover.release is None:
            may_run_there = self._view.settlements.is_fenced(failed)
            return await self._settle_by_destination(failed, now, may_run_there=may_run_there)
        try:
            arrived = await self._order(failed.to_host, failed, now, MoveStep.ACTIVATE, released.handover)
        except _NodeSilent as silent:
            if self._view.is_confirmed_down(failed.to_host):
                return await self._take_back(failed, now)
            return StepWait(f"{silent}: {failed.name} was moved there", failed.to_host)
        if arrived.done is None:
            return StepWait(f"an earlier move of {failed.name} must end first", failed.to_host)
        return failed.to_host if arrived.done.ok else ""

    async def _take_back(self, failed: Act, now: float) -> str | StepWait:
        """Let the source take back a VM that its destination, which is down, never ran; then ""."""
        # That it takes the VM back is durable before it is ordered: a destination that is up again does not know that
        # it has lost the VM.
        await self._view.settlements.keep_returning(failed)
        try:
            taken_back = await self._order(failed.from_host, failed, now, MoveStep.RETURN)
        except _NodeSilent as silent:
            if self._view.is_confirmed_down(failed.from_host):
                return ""
            return StepWait(f"{silent}: it may be taking {failed.name} back", failed.from_host)
        if taken_back.done is None:
            return StepWait(f"an earlier move of {failed.name} must end first", failed.from_host)
        if not taken_back.done.ok:
            log.warning("an earlier move of %s to %s failed: %s", failed.name, failed.to_host, taken_back.done.note)
        return ""

    async def _settle_by_destination(self, failed: Act, now: float, *, may_run_there: bool) -> str | StepWait:
        """Decide by the destination: what was not activated there never will be."""
        # `may_run_there` False: the source has not released the VM, and never will, nor was it fenced. Then the answer
        # of the destination does not matter.
        try:
            undone = await self._order(failed.to_host, failed, now, MoveStep.UNDO)
        except _NodeSilent as silent:
            if not may_run_there or self._view.is_confirmed_down(failed.to_host):
                return ""
            return StepWait(f"{silent}: {failed.name} may have been moved there", failed.to_host)
        if not may_run_there:
            return ""
        if undone.done is None:
            return StepWait(f"an earlier move of {failed.name} must end first", failed.to_host)
        return "" if undone.done.ok else failed.to_host

    def _after_silence(self, progress: MoveProgress, order: StepOrder, text: str) -> StepOrder | StepWait | ActDone:
        real_now, source = self._view.real_time(), progress.act.from_host
        is_destination_down = self._view.is_confirmed_down(progress.act.to_host)
        if order.step is MoveStep.FENCE and not is_destination_down:
            return StepWait(text, order.host)
        fenced_at = self._fenced_at.get(source)
        may_fence = fenced_at is None or real_now - fenced_at >= _FENCE_INTERVAL_S
        following = after_silence(
            progress,
            order,
            text,
            is_down=self._view.is_confirmed_down(source),
            may_fence=may_fence,
            real_now=real_now,
            is_destination_down=is_destination_down,
        )
        if isinstance(following, StepOrder) and following.step is MoveStep.FENCE:
            self._fenced_at[source] = real_now
        return following

    async def _order(
        self,
        host: str,
        act: Act,
        now: float,
        step: MoveStep | None = None,
        given: MoveHandover = MoveHandover(),
    ) -> StepReport:
        """Send an order to the node of a host and return its report. _NodeSilent if it does not answer."""
        # _LeaseUnsure if the lease is not certainly held, which is checked right before each time that it is sent.
        self._require_lease()
        view = self._view
        scopes = view.host_scopes(host_id(host), act.vm)
        order = ActOrder(view.term(), view.store_tag(), act, now, step, given, scopes, view.record())
        try:
            reply = decode_order_reply(
                await request_repeatedly(
                    self._bus,
                    self._subjects.act(host),
                    encode_bus_message(order),
                    within_s=_ORDER_S,
                    every_s=_REPEAT_S,
                    may_send=view.is_held,
                )
            )
        except (NoAnswer, Rejected):
            self._require_lease()
            raise _NodeSilent(view.silence_text(host)) from None
        if not isinstance(reply, OrderRefused):
            return reply.report
        if reply.counts:
            raise Unavailable(reply.text)
        if reply.term > order.term:
            log.error("the node of host %s knows term %d, and this control node has %d", host, reply.term, order.term)
        return StepReport.of(ActUnderWay(at=now + _RETRY_AFTER_S, note=reply.text, waits_for_host=host))
