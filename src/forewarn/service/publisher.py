"""Between control and the metadata room: what is committed is published, what VMs ask is handed on."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from typing import Any

from forewarn.assembly.doorway import Doorway
from forewarn.assembly.settings import Settings
from forewarn.assembly.token import Tokens
from forewarn.assembly.workers import Crew
from forewarn.control.control import Control
from forewarn.core.fleet import Vm
from forewarn.core.projection import document_for, facts_for
from forewarn.core.replay import Shown
from forewarn.core.scope import Scope
from forewarn.core.script import Instead
from forewarn.errors import Rejected
from forewarn.metadata import (
    Board,
    Callers,
    Fixed,
    Lab,
    Limits,
    Listener,
    MetadataServer,
    Observations,
    Reset,
    ScopeView,
    Way,
    feed,
    open_lab,
    place_within,
)
from forewarn.metadata.counted import Counted
from forewarn.metadata.fault import FaultTable
from forewarn.protocol.exchange import Response, Rules
from forewarn.protocol.versions import VERSIONS
from forewarn.store.seam import Committed

log = logging.getLogger(__name__)
Face = tuple[int, int, bool]


class Backing:
    """The `Backend` of the metadata room."""

    def __init__(self, control: Control, tokens: Tokens | None = None) -> None:
        self.enable = control.guests.enable
        self.approve = control.guests.approve
        self.token = (tokens or Tokens()).token
        self.now = control.clock.now


class Mouth:
    """The metadata server with its listeners; keeps its board and its callers as the store says."""

    def __init__(
        self, settings: Settings, control: Control, lab: Lab | None, doorway: Doorway, callers: Callers
    ) -> None:
        self._settings = settings
        self._store = control.store
        self._replays = control.replays
        self._faults = control.faults
        self._lab = lab
        self._listeners = [lab.listener] if lab else []
        self._doorway = doorway
        self._clock = control.clock
        self._board: Board | Crew
        self._callers = callers
        self._places: dict[str, str] = {}  # VM key → where its calls come in
        self._faces: dict[str, Face] = {}  # of scopes that were published again since the start
        self._server: MetadataServer | Crew | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._windows: tuple[socket.socket, ...] = ()

    @classmethod
    def open(cls, settings: Settings, control: Control) -> Mouth:
        """Bind every socket before anything is served, so that a port in use stops the start."""
        doorway, callers = Doorway(settings), Callers()
        doorway.introduce(callers, control.store)
        doorway.open()
        lab = _lab(settings, control) if settings.lab else None
        return cls(settings, control, lab, doorway, callers)

    async def start(self, backing: Backing, windows: tuple[socket.socket, ...] = ()) -> None:
        """`windows`: where workers show their metrics, one each."""
        self._windows = windows
        server = self._server = self._crew(backing) if self._settings.workers else self._alone(backing)
        if isinstance(server, Crew):
            await server.begin()
        server.observations.count_on(self._store.polls())
        for scope in self._store.scopes():
            self._publish(scope)
        self._store.subscribe(self._hear)
        self._faults.follow(server.arm)
        if isinstance(server, Crew):
            await server.complete()
        await server.start(self._listeners)
        await self._doorway.start(server)

    async def listen_within(self, vm: str, sock: socket.socket) -> Listener:
        """Serve the VM with this key on a listening socket that it alone can reach."""
        self._callers.assign(place_within(vm), vm)
        listener = Listener(sockets=(sock,), strategy=Fixed(vm), is_loopback=False)
        await self._running.start([listener])
        return listener

    async def unlisten(self, listener: Listener) -> None:
        await self._running.stop(listener)

    async def drain(self, timeout_s: float) -> None:
        await self._doorway.stop()
        await self._running.drain(timeout_s)

    async def reload(self, timeout_s: float) -> None:
        """Another process in the place of every worker; without workers there is nothing to replace."""
        if isinstance(self._server, Crew):
            await self._server.reload(timeout_s)

    async def report(self) -> None:
        """What VMs were seen to ask until now is in `observations` and `faults`, whichever process saw it."""
        if isinstance(self._server, Crew):
            await self._server.report()

    async def caught_up(self) -> None:
        """Whatever is committed is what VMs are shown, by whichever process."""
        if isinstance(self._server, Crew):
            await self._server.caught_up()

    @property
    def observations(self) -> Observations:
        return self._running.observations

    @property
    def faults(self) -> FaultTable:
        return self._running.faults

    def listeners(self) -> list[dict[str, Any]]:
        """Where VMs call, for people."""
        shown = []
        for listener in self._listeners:
            for sock in listener.sockets:
                address, port = sock.getsockname()[:2]
                if self._lab and self._lab.way is Way.DEVICE and listener is self._lab.listener:
                    address = "127.0.0.0/8"
                shown.append({"address": address, "port": port, "identity": type(listener.strategy).__name__})
        return shown + self._doorway.shown()

    def workers(self) -> list[dict[str, Any]]:
        """The processes that serve VMs, if they are not this one."""
        return self._server.shown() if isinstance(self._server, Crew) else []

    def counted(self) -> Counted:
        """What VMs asked, in all processes."""
        return self._running.counted()

    def behind(self) -> list[tuple[float, float]]:
        """How far behind each worker is; see `Crew.behind`."""
        return self._server.behind() if isinstance(self._server, Crew) else []

    def endpoint_of(self, vm: Vm) -> str:
        """The base URL under which this VM is served to whoever tries it out here; "" on real networks."""
        if self._lab is None or not self._places.get(vm.key):
            return ""
        address, port = self._lab.endpoint(vm.lab_address)
        return f"http://{address}:{port}"

    def rules_for(self, location: str) -> Rules:
        """What VMs of this location are served by."""
        rules, by_location = rules_of(self._settings)
        return by_location.get(location, rules)

    @property
    def _running(self) -> MetadataServer | Crew:
        assert self._server is not None
        return self._server

    def _alone(self, backing: Backing) -> MetadataServer:
        """Everything in this process."""
        board = self._board = Board(first_answer_delay_s=self._settings.first_answer_delay_s)
        rules, by_location = rules_of(self._settings)
        return MetadataServer(
            board=board,
            backend=backing,
            callers=self._callers,
            rules_for=lambda location: by_location.get(location, rules),
            limits=Limits(requests_per_s=self._settings.requests_per_s or None),
        )

    def _crew(self, backing: Backing) -> Crew:
        settings = self._settings
        rules, by_location = rules_of(settings)
        begin = feed.Begin(rules, by_location, settings.first_answer_delay_s, settings.requests_per_s or None)
        crew = Crew(
            settings.workers,
            begin=begin,
            backend=backing,
            callers=self._callers,
            clock=self._clock,
            windows=self._windows,
        )
        self._board = crew
        return crew

    def _hear(self, committed: Committed) -> None:
        """An approval, or the outcome of one VM, changes facts of an event but nothing that VMs are shown."""
        commit = committed.commit
        for row in {scope.id: scope for scope in commit.scopes}.values():
            if commit.requests or commit.vms or self._faces.get(row.id) != _face(row):
                scope = self._store.scope(row.id)
                if scope is not None:
                    self._publish(scope)
                    self._faces[row.id] = _face(scope)

    def _publish(self, scope: Scope) -> None:
        self._board.publish(view_of(scope, self._replays.shown(scope)))
        for vm in scope.vms:
            self._seat(vm)

    def _seat(self, vm: Vm) -> None:
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
            listener = self._lab.add(vm.lab_address)
        except Rejected as error:
            log.warning("VM %s is not served: %s", vm.name, error)
            return ""
        if listener is not None:
            self._listeners.append(listener)
            task = asyncio.create_task(self._running.start([listener]))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        return self._lab.place(vm.lab_address)


def rules_of(settings: Settings) -> tuple[Rules, dict[str, Rules]]:
    """What the operator has set about the endpoint: usually, and where a location differs."""
    rules = Rules(
        versions=VERSIONS,
        header_always=settings.require_header,
        unknown_version=settings.unknown_version,
        iso_dates=settings.iso_dates,
        gives_tokens=settings.identity_on_loopback,
    )
    return rules, {name: replace(rules, versions=versions) for name, versions in settings.versions.items()}


def _face(scope: Scope) -> Face:
    """While this, its VMs and what is replayed to it stay the same, a scope shows the same (spec §4.2)."""
    return scope.epoch, scope.incarnation, scope.is_enabled


def view_of(scope: Scope, shown: Shown | None = None) -> ScopeView:
    """The scope's own document, or what a replay shows in its place."""
    return ScopeView(
        scope_id=scope.id,
        enabled=scope.is_enabled,
        epoch=scope.epoch,
        document=shown.document if shown else document_for(scope),
        vms={vm.key: facts_for(vm) for vm in scope.present},
        instead=_answer_of(shown.instead) if shown and shown.instead else None,
    )


def _answer_of(instead: Instead) -> Response | Reset:
    if instead.status is None:
        return Reset()
    fields = (("Content-Type", instead.content_type), ("Retry-After", instead.retry_after))
    headers = tuple((name, value) for name, value in fields if value)
    return Response(status=instead.status, headers=headers, body=instead.body)


def _lab(settings: Settings, control: Control) -> Lab:
    # Those of VMs that are gone too: where each has a port, the others must not move up.
    addresses = list(dict.fromkeys(vm.lab_address for vm in control.store.vms(removed=True) if vm.lab_address))
    ways = (Way.PORTS,) if settings.one_port_per_vm else tuple(Way)
    return open_lab(addresses or ["127.0.0.1"], settings.port, ways=ways, setting="port")
