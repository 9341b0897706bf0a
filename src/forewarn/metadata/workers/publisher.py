"""Publishes committed scopes to the frontend that answers VMs, and handles the requests of VMs.

`MetadataPublisher` keeps the published scopes and the VM places equal to the store. `GuestBackend` handles the requests
of VMs that cannot be answered from memory.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from forewarn.auth.token_service import VmTokens
from forewarn.control.control_plane import ControlPlane
from forewarn.control.directory import FleetDirectory
from forewarn.core.commit import Commit
from forewarn.core.faults import Fault
from forewarn.core.fleet import Vm
from forewarn.core.projection import document_for, instance_facts
from forewarn.core.replay import ReplayedAnswer, SubstituteAnswer
from forewarn.core.scope import Scope
from forewarn.errors import Rejected, Unavailable
from forewarn.metadata import (
    CallerDirectory,
    LabListeners,
    LabListenMode,
    PublishedScope,
    ResetConnection,
    VmListener,
    open_lab_listeners,
)
from forewarn.metadata.workers.frontend import FrontendConfig, MetadataFrontend
from forewarn.protocol.http_message import HttpResponse
from forewarn.store.interface import AppliedCommit, Store

log = logging.getLogger(__name__)


# Publishes scopes that a commit has changed: few at once, many in turns.
#
# A commit of a whole fleet changes tens of thousands of scopes. Publishing them takes seconds of CPU time. Without
# turns the event loop would answer no VM meanwhile, and send no heartbeat to workers.

_MAX_AT_ONCE = 100  # scopes; takes a few milliseconds
_TURN_S = 0.005  # real time
_RETRY_S = 1.0
_MAX_WAIT_S = 30.0


class PublishQueue:
    """Calls `publish(scope_id)` for changed scopes on the event loop: few at once, many in short turns.

    Waiting scopes are published once, in the order they were added; one that fails goes to the end.
    """

    def __init__(self, publish: Callable[[str], None]) -> None:
        self._publish = publish
        self._waiting: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, scope_ids: Collection[str]) -> None:
        """Publish the scopes with these ids: up to 100 before it returns, more than 100 in the background.

        A few scopes do not wait for many that were added before. With at most 100 scopes an error of `publish` is
        raised; otherwise it is logged, and the scope is tried again.
        """
        if len(scope_ids) <= _MAX_AT_ONCE:
            for scope_id in scope_ids:
                self._publish(scope_id)
                self._waiting.pop(scope_id, None)
            return
        self._waiting.update(dict.fromkeys(scope_ids))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._publish_waiting())

    async def wait_until_empty(self) -> None:
        """Wait until no scope waits any more, but at most 30 s (real time); returns at once if none does."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_MAX_WAIT_S)

    async def close(self) -> None:
        """Stop publishing; scopes that still wait are not published. May be called again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._waiting.clear()

    async def _publish_waiting(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(self._publish_for_a_turn())
        finally:
            self._task = None

    def _publish_for_a_turn(self) -> float:
        """Publish waiting scopes for one turn, at least one; return the seconds to wait before the next turn."""
        clock = asyncio.get_running_loop().time
        ends_at = clock() + _TURN_S
        while self._waiting:
            scope_id = next(iter(self._waiting))
            del self._waiting[scope_id]
            try:
                self._publish(scope_id)
            except Exception:
                log.exception("scope %s cannot be published now, trying again", scope_id)
                self._waiting[scope_id] = None
                return _RETRY_S
            if clock() >= ends_at:
                break
        return 0.0


_STORE_TAG_SAVED_AS = "store_tag"
_STORE_TAG_BYTES = 4
PublishedVersion: TypeAlias = tuple[int, int, bool]  # epoch, incarnation, whether the scope is enabled


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig(FrontendConfig):
    """The settings that a `MetadataPublisher` and its frontend need; `publisher_config` makes it."""

    is_lab: bool = False  # serve each VM on a loopback address or port of its own
    port: int = 8254  # in a lab: of the loopback addresses, or the first of the VMs' ports; 0: any free port
    one_port_per_vm: bool = False  # in a lab: a port of 127.0.0.1 per VM; False: a loopback address per VM, if possible


class GuestBackend:
    """The `MetadataBackend` of the owner process: enables scopes, approves events and issues tokens."""

    def __init__(self, control: ControlPlane, tokens: VmTokens | None = None) -> None:
        self.enable = control.guests.enable_scope_of
        self.approve = control.guests.approve
        self.token = (tokens or VmTokens()).token
        self.now = control.clock.now


class ScopeSink(Protocol):
    """Receives published scopes in place of the frontend in this process: the streams of host nodes."""

    def publish_scope(self, scope: Scope, published: PublishedScope) -> None:
        """Show the VMs of `scope` (as stored) what `published` contains, in place of what they saw before.

        Called with all scopes at the start, then with each scope that changed. Must return at once, and raise nothing:
        an error keeps other scopes of the same commit from being published.
        """

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the active faults that affect requests of VMs; ignore faults of other categories."""

    async def wait_until_published(self) -> None:
        """Wait until all that was published has been handed over for sending, for at most a second."""


class MetadataPublisher:
    """Keeps what VMs see, and where they call from, equal to the store of the owner process.

    `open` makes the publisher and binds the sockets, `start` begins serving, `drain` ends it.
    """

    def __init__(
        self, config: PublisherConfig, control: ControlPlane, lab: LabListeners | None, frontend: MetadataFrontend
    ) -> None:
        self.frontend = frontend
        self._config = config
        self._store = control.store
        self._placement = control.placement
        self._replays = control.replays
        self._faults = control.faults
        self._lab = lab
        self._listeners = [lab.listener] if lab else []
        self._callers = frontend.callers
        self._places: dict[str, tuple[str, ...]] = {}  # VM key → where its calls come in, see `_places_of`
        self._removed_vms: set[str] = set()  # keys of those that may have polled
        # Only of scopes that were published again since the start:
        self._published_versions: dict[str, PublishedVersion] = {}
        self._publish_queue = PublishQueue(self._publish_committed)
        self._listener_tasks: set[asyncio.Task[None]] = set()
        self._sink: ScopeSink | None = None

    @classmethod
    def open(cls, config: PublisherConfig, control: ControlPlane) -> MetadataPublisher:
        """Make a publisher and bind its sockets; it accepts no connection yet.

        So a port in use stops the start before anything is served. A listener of `[[listeners]]` whose device does not
        exist yet is opened later; for one of `--listen` that is an error. After an error none stays bound.
        """
        frontend = MetadataFrontend(
            config, callers=CallerDirectory(), clock=control.clock, real_time=control.faults.real_time
        )
        network_listeners = frontend.network_listeners
        if network_listeners.names_vms:  # do not build the directory of the whole fleet for nothing
            directory = FleetDirectory(control.store)
            try:
                network_listeners.assign_vms(frontend.callers, lambda name: directory.find_any(name).key)
            finally:
                directory.close()
        network_listeners.bind()
        try:
            lab = _open_lab_listeners(config, control) if config.is_lab else None
        except BaseException:
            network_listeners.close()
            raise
        return cls(config, control, lab, frontend)

    async def start(
        self,
        backend: GuestBackend,
        metrics_sockets: tuple[socket.socket, ...] = (),
        make_sink: Callable[[str], ScopeSink] | None = None,
    ) -> None:
        """Publish all scopes, follow every commit and fault change, and serve; returns when VMs can connect.

        If host nodes answer the VMs, `make_sink` makes the sink that gets the scopes, from the store's tag. Call it
        once, and the other methods only after it, except `published`.
        """
        store_tag = await load_store_tag(self._store)
        await self.frontend.prepare(backend, store_tag=store_tag, metrics_sockets=metrics_sockets)
        polls = self._store.last_polls()
        self.frontend.observations.restore_counts(polls)
        self._removed_vms = {poll.vm for poll in polls}.difference(self._placement.vm_keys())
        if make_sink is not None:
            self._sink = make_sink(store_tag)
        for scope in self._store.scopes():
            self._publish(scope)
        self._store.subscribe(self._on_commit)
        self._faults.subscribe((self._sink or self.frontend).set_faults)
        await self.frontend.serve(self._listeners)

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, answer the requests in progress within `timeout_s`, and end server and workers."""
        await self._publish_queue.close()
        await self.frontend.drain(timeout_s)

    async def wait_until_published(self) -> None:
        """Wait until VMs are shown what is committed now: at most 30 s, and then a second for the workers."""
        await self._publish_queue.wait_until_empty()
        await (self._sink or self.frontend).wait_until_published()

    def describe_listeners(self) -> list[dict[str, Any]]:
        """Return one dictionary for each listener, as in `GET /service`; listeners inside VMs are left out."""
        described = []
        for listener in self._listeners:
            for sock in listener.sockets:
                address, port = sock.getsockname()[:2]
                if self._lab and self._lab.mode is LabListenMode.DEVICE and listener is self._lab.listener:
                    address = "127.0.0.0/8"
                described.append({"address": address, "port": port, "identity": listener.strategy.kind})
        return described + self.frontend.network_listeners.describe()

    def lab_endpoint(self, vm: Vm) -> str:
        """Return the base URL `http://ADDRESS:PORT` at which a program on this machine polls as this VM."""
        if self._lab is None or not self._places.get(vm.key, ("",))[0]:
            return ""
        address, port = self._lab.endpoint(vm.lab_address)
        return f"http://{address}:{port}"

    def published(self, scope: Scope) -> PublishedScope:
        """Return the scope as its VMs see it: with its own document, or what a running replay answers."""
        vms = {vm.key: vm for vm in scope.present_vms}
        return _published_scope(scope, vms, self._replays.current_answer(scope))

    def _on_commit(self, committed: AppliedCommit) -> None:
        # An approval or the outcome of one VM changes an event, but not the document.
        commit = committed.commit
        for vm in commit.vms:
            self._track_removal(vm)
        rows = {scope.id: scope for scope in commit.scopes}
        if not (commit.requests or commit.vms or (self._sink is not None and _moves_vms(commit))):
            rows = {
                id_: row for id_, row in rows.items() if self._published_versions.get(id_) != _published_version(row)
            }
        self._publish_queue.add(rows)

    def _publish_committed(self, scope_id: str) -> None:
        scope = self._store.scope(scope_id)
        if scope is not None:
            self._publish(scope)
            self._published_versions[scope_id] = _published_version(scope)

    def _publish(self, scope: Scope) -> None:
        published = self.published(scope)
        if self._sink is not None:
            self._sink.publish_scope(scope, published)
            return
        self.frontend.publish(published)
        for vm in scope.present_vms:
            self._assign_places(vm.key, vm)

    def _track_removal(self, vm: Vm) -> None:
        """Forget the polls of a removed VM when another one is added under its key."""
        key = vm.key
        if vm.removed_at is not None:
            self._removed_vms.add(key)
        elif key in self._removed_vms:
            self._removed_vms.discard(key)
            self.frontend.observations.replace_vm(key, vm.vm_id)

    def _assign_places(self, key: str, vm: Vm) -> None:
        # A removed VM keeps its places: no scope shows it, so its calls are those of an unknown VM.
        places, old = self._places_of(vm), self._places.get(key, ())
        for place in old:
            if place and place not in places and self._callers.vm_at(place) == key:
                self._callers.release(place)
        for place in places:
            if place:
                self._callers.assign(place, key)
        self._places[key] = places

    def _places_of(self, vm: Vm) -> tuple[str, ...]:
        """Where this VM's calls come in; "" for each place where it is not served."""
        # A VM of a lab has its place on loopback first and, if the fleet file gives it an address elsewhere, that one
        # too.
        if self._lab is None:
            return (vm.address,)
        return self._loopback_place(self._lab, vm), "" if vm.address.startswith("127.") else vm.address

    def _loopback_place(self, lab: LabListeners, vm: Vm) -> str:
        """Where the calls of this VM of a lab come in; opens a listener in a lab that needs one per VM."""
        if not vm.lab_address:
            return ""
        try:
            listener = lab.add_address(vm.lab_address)
        except (Rejected, Unavailable) as error:
            log.warning("VM %s is not served: %s", vm.name, error)
            return ""
        if listener is not None:
            self._listeners.append(listener)
            task = asyncio.create_task(self._start_lab_listener(vm, listener))
            self._listener_tasks.add(task)
            task.add_done_callback(self._listener_tasks.discard)
        return lab.attachment(vm.lab_address)

    async def _start_lab_listener(self, vm: Vm, listener: VmListener) -> None:
        try:
            await self.frontend.server.start([listener])
        except OSError as error:
            log.warning("VM %s is not served: its listener cannot be used (%s)", vm.name, error.strerror)


async def load_store_tag(store: Store) -> str:
    """Return the random part of the store's ETags (spec §4.3), 8 hexadecimal digits."""
    saved = store.load(_STORE_TAG_SAVED_AS)
    if saved is None:
        saved = secrets.token_hex(_STORE_TAG_BYTES).encode()
        await store.save(_STORE_TAG_SAVED_AS, saved)
    return saved.decode()


def _moves_vms(commit: Commit) -> bool:
    """Whether a move begins or ends in this commit: then other hosts than before must know the VM."""
    return any(act.to_host for event in commit.events for act in event.acts)


def _published_version(scope: Scope) -> PublishedVersion:
    """Changes whenever the document changes, unless only its VMs or a replay changed (spec §4.2)."""
    return scope.epoch, scope.incarnation, scope.is_enabled


def _published_scope(scope: Scope, vms: Mapping[str, Vm], replayed: ReplayedAnswer | None) -> PublishedScope:
    return PublishedScope(
        scope_id=scope.id,
        enabled=scope.is_enabled,
        epoch=scope.epoch,
        document=replayed.document if replayed else document_for(scope),
        vms={key: instance_facts(vm) for key, vm in vms.items()},
        poll_override=_replacement_answer(replayed.instead) if replayed and replayed.instead else None,
        is_narrow=scope.is_narrow,
    )


def _replacement_answer(instead: SubstituteAnswer) -> HttpResponse | ResetConnection:
    if instead.status is None:
        return ResetConnection()
    fields = (("Content-Type", instead.content_type), ("Retry-After", instead.retry_after))
    headers = tuple((name, value) for name, value in fields if value)
    return HttpResponse(status=instead.status, headers=headers, body=instead.body)


def _open_lab_listeners(config: PublisherConfig, control: ControlPlane) -> LabListeners:
    def addresses() -> list[str]:
        # Removed VMs too: with one port per VM, the ports of the others must not change.
        known = (vm.lab_address for vm in control.store.vms(removed=True) if vm.lab_address)
        return list(dict.fromkeys(known)) or ["127.0.0.1"]

    modes = (LabListenMode.PORTS,) if config.one_port_per_vm else tuple(LabListenMode)
    return open_lab_listeners(addresses, config.port, modes=modes, setting="port")
