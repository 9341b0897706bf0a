"""The active control node's part of a cluster: the streams of hosts, and the remote hypervisor.

Built in two steps, because the control plane needs a hypervisor before there is anything to publish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from forewarn.base.clock import real_now
from forewarn.cluster.bus import Bus, Subjects
from forewarn.cluster.host_streams import ActiveTerm, HostStreams, OnlyService, host_id
from forewarn.cluster.move_plan import MoveSettlements
from forewarn.cluster.node_registry import JoinedNode
from forewarn.cluster.remote_hypervisor import ClusterView, RemoteHypervisor
from forewarn.control.control_plane import ControlPlane
from forewarn.control.placement_index import PlacementIndex
from forewarn.core.decision import HostSilence
from forewarn.core.event import Act
from forewarn.core.fleet import HostHealth
from forewarn.core.scope import Scope
from forewarn.machines.moves import is_move
from forewarn.metadata import MetadataBackend, PublishedScope
from forewarn.metadata.limits import ServingSettings
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metadata.workers.messages import BeginServing, ObservationReport
from forewarn.metadata.workers.publisher import MetadataPublisher
from forewarn.store.interface import Store

_SILENCES_S = 1.0  # how old what decisions know about silent nodes may be
_EARLIER_EVENTS = 50  # of a scope, among which the last arrival of a VM is looked for first
BOUND_ACTS_NAME = "bound-acts"  # of the saved value: act id → host, for acts on VMs that are on no host


class ClusterControl:
    """The active control node's side of the bus: the streams to host nodes, and the remote hypervisor.

    Give its attribute `hypervisor` to the control plane, which may perform acts with it only after `make_streams`. Then
    call `attach`, pass `make_streams` to the publisher's start, and finally call `start`; `close` ends it.
    """

    def __init__(
        self, bus: Bus, subjects: Subjects, *, session: str, name: str = "", term: ActiveTerm | None = None
    ) -> None:
        self._bus, self._subjects, self._session, self._name = bus, subjects, session, name
        self._term: ActiveTerm = term or OnlyService()
        self._comparing: asyncio.Task[None] | None = None  # of CPUs
        self._control: ControlPlane
        self._publisher: MetadataPublisher
        self._backend: MetadataBackend
        self._serving: ServingSettings
        self._store_tag = ""
        self.streams: HostStreams
        self._silences: dict[str, HostSilence] = {}
        self._silences_at = float("-inf")  # when they were computed, by the loop's clock
        self._bindings = ActBindings()
        self.hypervisor = RemoteHypervisor(bus, subjects, self._view())

    def attach(
        self, control: ControlPlane, publisher: MetadataPublisher, backend: MetadataBackend, serving: ServingSettings
    ) -> None:
        """Keep the control plane and what else `make_streams` needs. Call it once, before `make_streams`."""
        self._control, self._publisher, self._backend, self._serving = control, publisher, backend, serving

    def make_streams(self, store_tag: str) -> HostStreams:
        """Make and return the streams to host nodes, to which the publisher then publishes. Sends nothing yet."""
        control = self._control
        self._store_tag = store_tag
        self.streams = HostStreams(
            self._bus,
            self._subjects,
            fleet=CommittedFleet(control.store, control.placement, self._publisher.published),
            backend=self._backend,
            begin=BeginServing(self._serving, store_tag),
            merge=self._merge,
            session=self._session,
            name=self._name,
            term=self._term,
        )
        control.transactions.host_silences = self._host_silences
        return self.streams

    async def start(self) -> None:
        """Answer host nodes and send heartbeats from now on, even if the bus is out of reach."""
        await self.streams.start()
        self._comparing = asyncio.create_task(self.hypervisor.compare_cpus())

    async def close(self) -> None:
        """Stop answering host nodes, sending heartbeats and comparing CPUs; the bus stays open."""
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)
        await self.streams.close()

    def describe_nodes(self) -> list[dict[str, Any]]:
        """Return one dictionary per host node that has joined, with plain JSON values, sorted by host."""
        return self.streams.registry.describe(asyncio.get_running_loop().time())

    def request_totals(self) -> RequestTotals:
        """Return the sum of the counts of VMs' requests at all host nodes that have joined."""
        return self.streams.registry.request_totals()

    def _merge(self, report: ObservationReport) -> None:
        frontend = self._publisher.frontend
        frontend.observations.merge_increments(report.polls, report.deliveries)
        frontend.faults.add_hits(report.hits)

    def _view(self) -> ClusterView:
        return ClusterView(
            term=lambda: self._term.number,
            is_held=lambda: self._term.is_held,
            store_tag=lambda: self._store_tag,
            hosts=lambda: [
                host.name for host in self._control.placement.hosts() if host.health is not HostHealth.FAILED
            ],
            bind_act=lambda act, host: self._bindings.bind(self._control.store, act, host),
            is_confirmed_down=lambda host: self._control.placement.is_confirmed_down(host),
            silence_text=self._silence_text,
            host_scopes=lambda host_key, vm_key: self.streams.host_scopes(host_key, vm_key),
            record=lambda: self._term.record,
            real_time=real_now,
            failed_moves=self._failed_moves,
            settlements=MoveSettlements(lambda: self._control.store),
            nodes=self._nodes,
        )

    def _nodes(self) -> list[JoinedNode]:
        return self.streams.registry.nodes() if self._store_tag else []  # there are no streams before

    def _silence_text(self, host: str) -> str:
        return self.streams.registry.wait_text(host_id(host), host, asyncio.get_running_loop().time())

    def _host_silences(self) -> dict[str, HostSilence]:
        now = asyncio.get_running_loop().time()
        if now - self._silences_at >= _SILENCES_S:
            self._silences_at = now
            ahead_s = self._control.clock.now() - now
            self._silences = {}
            for host in self._control.placement.hosts():
                silence = self.streams.registry.silence_of(host_id(host.name), now)
                if silence is not None:
                    since, until = silence.since, silence.until
                    self._silences[host.name] = HostSilence(
                        since=0.0 if since is None else since + ahead_s,
                        until=None if until is None else until + ahead_s,
                    )
        return self._silences

    def _failed_moves(self, act: Act) -> Iterator[Act]:
        placement, store = self._control.placement, self._control.store
        if not placement.has_vm(act.vm):
            return
        scope_id, limit, arrived = placement.scope_of(act.vm), _EARLIER_EVENTS, -1
        while arrived < 0:
            events = store.events(scope_id=scope_id, limit=limit)
            acts = [
                other
                for event in events
                for other in event.acts
                if other.vm == act.vm and other.id != act.id and other.to_host and other.outcome is not None
            ]
            acts.sort(key=lambda other: other.outcome.at if other.outcome else 0.0)
            arrived = max((index for index, other in enumerate(acts) if other.outcome and other.outcome.ok), default=-1)
            if len(events) < limit:
                break
            limit *= 4
        for failed in acts[arrived + 1 :]:
            if is_move(failed) and placement.host(failed.to_host) is not None:
                yield failed


class ActBindings:
    """Remembers, in the store, which host performs an act on a VM that is on no host."""

    # The choice must outlive this process and changes of the fleet: another host does not know what the first one did.

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # all of them are one saved value

    async def bind(self, store: Store, act: Act, host: str) -> str:
        """Return the host that performs this act: the one that was stored before, otherwise `host`."""
        async with self._lock:
            saved = store.load(BOUND_ACTS_NAME)
            bound = msgspec.json.decode(saved, type=dict[str, str]) if saved else {}
            known = {each.name for each in store.hosts()}
            if bound.get(act.id) in known:
                return bound[act.id]
            if host:
                kept = {id: name for id, name in bound.items() if name in known and _is_unfinished(store, id)}
                await store.save(BOUND_ACTS_NAME, msgspec.json.encode(kept | {act.id: host}))
            return host


def _is_unfinished(store: Store, act_id: str) -> bool:
    event = store.event(act_id.partition(":")[0])
    return event is not None and any(act.id == act_id for act in event.unfinished_acts)


class CommittedFleet:
    """The fleet as the store has it, for the streams to host nodes."""

    def __init__(self, store: Store, placement: PlacementIndex, published: Callable[[Scope], PublishedScope]) -> None:
        self.published = published
        self._store = store
        self._placement = placement

    def host_name(self, host_key: str) -> str | None:
        return next((host.name for host in self._placement.hosts() if host_id(host.name) == host_key), None)

    def scopes_on(self, host_key: str) -> Iterator[Scope]:
        name = self.host_name(host_key)
        if name is None:
            return
        keys = [*(vm.key for vm in self._store.vms(host=name)), *self._placement.vms_moving_to(name)]
        for scope_id in dict.fromkeys(self._placement.scope_of(key) for key in keys if self._placement.has_vm(key)):
            scope = self._store.scope(scope_id)
            if scope is not None:
                yield scope

    def scope_of(self, vm_key: str) -> Scope | None:
        return self._store.scope(self._placement.scope_of(vm_key)) if self._placement.has_vm(vm_key) else None
