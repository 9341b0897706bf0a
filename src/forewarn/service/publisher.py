"""Publishes committed scopes to the metadata server or the workers, and passes on VM requests.

`MetadataPublisher` owns the metadata server with its listeners, and keeps the published scopes and the VM places
equal to the store. `GuestBackend` is what the metadata server calls for requests that it cannot answer from memory.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from typing import Any

from forewarn.auth.token_service import VmTokens
from forewarn.control.control_plane import ControlPlane
from forewarn.core.fleet import Vm
from forewarn.core.projection import document_for, instance_facts
from forewarn.core.replay import ReplayedAnswer
from forewarn.core.replay_script import SubstituteAnswer
from forewarn.core.scope import Scope
from forewarn.errors import Rejected
from forewarn.metadata import (
    CallerDirectory,
    Fixed,
    GuestObservations,
    LabListeners,
    LabListenMode,
    Limits,
    MetadataServer,
    PublishedDocuments,
    PublishedScope,
    ResetConnection,
    VmListener,
    dedicated_attachment,
    open_lab_listeners,
)
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metadata.transport_faults import FaultTable
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.http_message import HttpResponse
from forewarn.protocol.versions import VERSIONS
from forewarn.service.listeners import NetworkListeners
from forewarn.service.settings import Settings
from forewarn.store.interface import AppliedCommit
from forewarn.workers import messages
from forewarn.workers.pool import WorkerPool

log = logging.getLogger(__name__)
PublishedVersion = tuple[int, int, bool]


class GuestBackend:
    """The `Backend` of the metadata room."""

    def __init__(self, control: ControlPlane, tokens: VmTokens | None = None) -> None:
        self.enable = control.guests.enable_scope_of
        self.approve = control.guests.approve
        self.token = (tokens or VmTokens()).token
        self.now = control.clock.now


class MetadataPublisher:
    """The metadata server with its listeners; keeps its board and its callers as the store says."""

    def __init__(
        self,
        settings: Settings,
        control: ControlPlane,
        lab: LabListeners | None,
        doorway: NetworkListeners,
        callers: CallerDirectory,
    ) -> None:
        self._settings = settings
        self._store = control.store
        self._replays = control.replays
        self._faults = control.faults
        self._lab = lab
        self._listeners = [lab.listener] if lab else []
        self._network_listeners = doorway
        self._clock = control.clock
        self._board: PublishedDocuments | WorkerPool
        self._callers = callers
        self._places: dict[str, str] = {}  # VM key → where its calls come in
        self._published_versions: dict[
            str, PublishedVersion
        ] = {}  # of scopes that were published again since the start
        self._server: MetadataServer | WorkerPool | None = None
        self._listener_tasks: set[asyncio.Task[None]] = set()
        self._metrics_sockets: tuple[socket.socket, ...] = ()

    @classmethod
    def open(cls, settings: Settings, control: ControlPlane) -> MetadataPublisher:
        """Bind every socket before anything is served, so that a port in use stops the start."""
        doorway, callers = NetworkListeners(settings), CallerDirectory()
        doorway.assign_vms(callers, control.store)
        doorway.bind()
        lab = _open_lab_listeners(settings, control) if settings.lab else None
        return cls(settings, control, lab, doorway, callers)

    async def start(self, backing: GuestBackend, windows: tuple[socket.socket, ...] = ()) -> None:
        """`windows`: where workers show their metrics, one each."""
        self._metrics_sockets = windows
        server = self._server = self._new_worker_pool(backing) if self._settings.workers else self._new_server(backing)
        if isinstance(server, WorkerPool):
            await server.start_workers()
        server.observations.restore_counts(self._store.last_polls())
        for scope in self._store.scopes():
            self._publish(scope)
        self._store.subscribe(self._on_commit)
        self._faults.subscribe(server.set_faults)
        if isinstance(server, WorkerPool):
            await server.complete_start()
        await server.start(self._listeners)
        await self._network_listeners.start(server)

    async def listen_inside_vm(self, vm: str, sock: socket.socket) -> VmListener:
        """Serve the VM with this key on a listening socket that it alone can reach."""
        self._callers.assign(dedicated_attachment(vm), vm)
        listener = VmListener(sockets=(sock,), strategy=Fixed(vm), is_loopback=False)
        await self._running_server.start([listener])
        return listener

    async def stop_listening(self, listener: VmListener) -> None:
        await self._running_server.stop(listener)

    async def drain(self, timeout_s: float) -> None:
        await self._network_listeners.stop()
        await self._running_server.drain(timeout_s)

    async def reload_workers(self, timeout_s: float) -> None:
        """Another process in the place of every worker; without workers there is nothing to replace."""
        if isinstance(self._server, WorkerPool):
            await self._server.reload(timeout_s)

    async def collect_worker_reports(self) -> None:
        """What VMs were seen to ask until now is in `observations` and `faults`, whichever process saw it."""
        if isinstance(self._server, WorkerPool):
            await self._server.collect_reports()

    async def wait_until_published(self) -> None:
        """Whatever is committed is what VMs are shown, by whichever process."""
        if isinstance(self._server, WorkerPool):
            await self._server.wait_until_published()

    @property
    def observations(self) -> GuestObservations:
        return self._running_server.observations

    @property
    def faults(self) -> FaultTable:
        return self._running_server.faults

    def describe_listeners(self) -> list[dict[str, Any]]:
        """Where VMs call, for people."""
        shown = []
        for listener in self._listeners:
            for sock in listener.sockets:
                address, port = sock.getsockname()[:2]
                if self._lab and self._lab.mode is LabListenMode.DEVICE and listener is self._lab.listener:
                    address = "127.0.0.0/8"
                shown.append({"address": address, "port": port, "identity": type(listener.strategy).__name__})
        return shown + self._network_listeners.describe()

    def describe_workers(self) -> list[dict[str, Any]]:
        """The processes that serve VMs, if they are not this one."""
        return self._server.describe() if isinstance(self._server, WorkerPool) else []

    def request_totals(self) -> RequestTotals:
        """What VMs asked, in all processes."""
        return self._running_server.request_totals()

    def worker_lags(self) -> list[tuple[float, float]]:
        """How far behind each worker is; see `Crew.behind`."""
        return self._server.worker_lags() if isinstance(self._server, WorkerPool) else []

    def lab_endpoint(self, vm: Vm) -> str:
        """The base URL under which this VM is served to whoever tries it out here; "" on real networks."""
        if self._lab is None or not self._places.get(vm.key):
            return ""
        address, port = self._lab.endpoint(vm.lab_address)
        return f"http://{address}:{port}"

    def rules_for(self, location: str) -> EndpointRules:
        """What VMs of this location are served by."""
        rules, by_location = protocol_rules(self._settings)
        return by_location.get(location, rules)

    @property
    def _running_server(self) -> MetadataServer | WorkerPool:
        assert self._server is not None
        return self._server

    def _new_server(self, backing: GuestBackend) -> MetadataServer:
        """Everything in this process."""
        board = self._board = PublishedDocuments(first_answer_delay_s=self._settings.first_answer_delay_s)
        rules, by_location = protocol_rules(self._settings)
        return MetadataServer(
            board=board,
            backend=backing,
            callers=self._callers,
            rules_for=lambda location: by_location.get(location, rules),
            limits=Limits(requests_per_s=self._settings.requests_per_s or None),
        )

    def _new_worker_pool(self, backing: GuestBackend) -> WorkerPool:
        settings = self._settings
        rules, by_location = protocol_rules(settings)
        begin = messages.BeginServing(
            rules, by_location, settings.first_answer_delay_s, settings.requests_per_s or None
        )
        crew = WorkerPool(
            settings.workers,
            begin=begin,
            backend=backing,
            callers=self._callers,
            clock=self._clock,
            windows=self._metrics_sockets,
        )
        self._board = crew
        return crew

    def _on_commit(self, committed: AppliedCommit) -> None:
        """An approval, or the outcome of one VM, changes facts of an event but nothing that VMs are shown."""
        commit = committed.commit
        for row in {scope.id: scope for scope in commit.scopes}.values():
            if commit.requests or commit.vms or self._published_versions.get(row.id) != _published_version(row):
                scope = self._store.scope(row.id)
                if scope is not None:
                    self._publish(scope)
                    self._published_versions[row.id] = _published_version(scope)

    def _publish(self, scope: Scope) -> None:
        self._board.publish(scope_view(scope, self._replays.current_answer(scope)))
        for vm in scope.vms:
            self._assign_place(vm)

    def _assign_place(self, vm: Vm) -> None:
        """A removed VM keeps its seat: it is on no board, so whoever calls there is unknown."""
        place = self._place_of(vm)
        old = self._places.get(vm.key, "")
        if old == place and (not place or self._callers.vm_at(place) == vm.key):
            return
        if old and self._callers.vm_at(old) == vm.key:
            self._callers.release(old)
        if place:
            self._callers.assign(place, vm.key)
        self._places[vm.key] = place

    def _place_of(self, vm: Vm) -> str:
        """Where this VM's calls come in; in a lab that has to listen for each VM singly, listen for it."""
        if self._lab is None:
            return vm.address
        if not vm.lab_address:
            return ""
        try:
            listener = self._lab.add_address(vm.lab_address)
        except Rejected as error:
            log.warning("VM %s is not served: %s", vm.name, error)
            return ""
        if listener is not None:
            self._listeners.append(listener)
            task = asyncio.create_task(self._running_server.start([listener]))
            self._listener_tasks.add(task)
            task.add_done_callback(self._listener_tasks.discard)
        return self._lab.attachment(vm.lab_address)


def protocol_rules(settings: Settings) -> tuple[EndpointRules, dict[str, EndpointRules]]:
    """What the operator has set about the endpoint: usually, and where a location differs."""
    rules = EndpointRules(
        versions=VERSIONS,
        header_always=settings.require_header,
        unknown_version=settings.unknown_version,
        iso_dates=settings.iso_dates,
        gives_tokens=settings.identity_on_loopback,
    )
    return rules, {name: replace(rules, versions=versions) for name, versions in settings.versions.items()}


def _published_version(scope: Scope) -> PublishedVersion:
    """While this, its VMs and what is replayed to it stay the same, a scope shows the same (spec §4.2)."""
    return scope.epoch, scope.incarnation, scope.is_enabled


def scope_view(scope: Scope, shown: ReplayedAnswer | None = None) -> PublishedScope:
    """The scope's own document, or what a replay shows in its place."""
    return PublishedScope(
        scope_id=scope.id,
        enabled=scope.is_enabled,
        epoch=scope.epoch,
        document=shown.document if shown else document_for(scope),
        vms={vm.key: instance_facts(vm) for vm in scope.present_vms},
        poll_override=_replacement_answer(shown.instead) if shown and shown.instead else None,
    )


def _replacement_answer(instead: SubstituteAnswer) -> HttpResponse | ResetConnection:
    if instead.status is None:
        return ResetConnection()
    fields = (("Content-Type", instead.content_type), ("Retry-After", instead.retry_after))
    headers = tuple((name, value) for name, value in fields if value)
    return HttpResponse(status=instead.status, headers=headers, body=instead.body)


def _open_lab_listeners(settings: Settings, control: ControlPlane) -> LabListeners:
    # Those of VMs that are gone too: where each has a port, the others must not move up.
    addresses = list(dict.fromkeys(vm.lab_address for vm in control.store.vms(removed=True) if vm.lab_address))
    ways = (LabListenMode.PORTS,) if settings.one_port_per_vm else tuple(LabListenMode)
    return open_lab_listeners(addresses or ["127.0.0.1"], settings.port, ways=ways, setting="port")
