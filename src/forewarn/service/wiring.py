"""Builds one service from settings, starts its parts in order, and stops them in reverse order.

`running_service` is the entry point: store, clock, hypervisor and control first, then metadata, supervisors,
operators.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from forewarn import __version__
from forewarn.auth.token_service import VmTokens
from forewarn.base.clock import Clock, LabClock, SystemClock
from forewarn.base.http_server import HttpServer, bind_metrics_sockets, metrics_pages
from forewarn.base.unix_socket import bind_unix_socket
from forewarn.cluster.bus import Bus, Subjects
from forewarn.cluster.control_side import ClusterControl
from forewarn.cluster.host_streams import ActiveTerm
from forewarn.cluster.nats_bus import NatsBus
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.directory import FleetDirectory
from forewarn.control.lab_clock import load_clock_setting
from forewarn.core.commit import Commit, SavedValue
from forewarn.core.decision import DecisionContext, EnablementMode
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.history import SERVICE_STARTED, SERVICE_STOPPED, EntryKind, HistoryEntry
from forewarn.core.scope import Scope, enable_scope, scope_idle_at
from forewarn.errors import ForewarnError, Rejected
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.command import CommandHypervisor
from forewarn.machines.driver import MachineDriver
from forewarn.machines.interface import Hypervisor
from forewarn.machines.journal import MachineJournal
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.libvirt.driver import LibvirtDriver
from forewarn.machines.libvirt.session import load_libvirt
from forewarn.machines.process.hypervisor import ProcessHypervisor, SupervisorRecords, SupervisorRegistry
from forewarn.machines.process.server import StopListening, SupervisorServer
from forewarn.machines.process.starter import ProgramStarter
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.machines.simulated import SimulatedBehaviour, SimulatedHypervisor
from forewarn.metadata.node_metrics import HostNodesCollector
from forewarn.metadata.workers.publisher import GuestBackend, MetadataPublisher
from forewarn.service.data_directory import DataDirectory
from forewarn.service.first_start import apply_initial_fleet
from forewarn.service.maintenance_jobs import (
    prune_history_forever,
    record_fault_effects,
    record_fault_effects_forever,
    save_clock,
    save_clock_forever,
    write_all_observations,
    write_observations_forever,
)
from forewarn.service.service import Service, publisher_config, web_dependencies
from forewarn.service.settings import HypervisorKind, Settings, parse_metrics_address
from forewarn.service.web_server import OperatorServer, build_web_app, open_operator_server
from forewarn.store.commit_mark import RENEWAL_NAME, read_renewal
from forewarn.store.interface import Store
from forewarn.store.purpose import StorePurpose, mark_purpose
from forewarn.store.sqlite import SqliteStore
from forewarn.web.errors import Surface, message_for
from forewarn.web.metrics import ServiceMetrics
from forewarn.web.polling_report import PollingReport, polling_report
from forewarn.web.server import serve_unix

log = logging.getLogger(__name__)


# Connects a service to the bus of its cluster, where host nodes answer the VMs and perform the acts.

_SESSION_BYTES = 8


async def connect_bus(stack: AsyncExitStack, settings: Settings, name: str) -> NatsBus:
    """Connect this control node to the bus (NATS) and return the connection, which the stack closes."""
    bus = await NatsBus.connect(
        settings.nats,
        name=f"control node {name}",
        inbox=Subjects(settings.bus_prefix).inbox(f"control {name}"),
        on_waiting=lambda text: log.warning("%s", text),
    )
    stack.push_async_callback(bus.close)
    return bus


def new_cluster_control(bus: Bus, settings: Settings, name: str, term: ActiveTerm | None = None) -> ClusterControl:
    """Make the active control node's side of the bus, with a random session id. Sends nothing yet."""
    session = secrets.token_hex(_SESSION_BYTES)
    return ClusterControl(bus, Subjects(settings.bus_prefix), session=session, name=name, term=term)


async def open_cluster_control(stack: AsyncExitStack, settings: Settings) -> ClusterControl:
    """Connect the only service of a bus to it, under this machine's name; return its side of the bus."""
    name = socket.gethostname()
    return new_cluster_control(await connect_bus(stack, settings, name), settings, name)


# Opens the hypervisor that the settings choose, on the files of the data directory.


def open_hypervisor(
    settings: Settings,
    directory: DataDirectory,
    supervisors: SupervisorRegistry,
    is_confirmed_down: Callable[[str], bool],
) -> Hypervisor:
    kind = settings.chosen_hypervisor
    if kind is HypervisorKind.NODES:
        raise Rejected("host nodes perform the acts of a service with a bus: it has no hypervisor of its own")
    if kind is HypervisorKind.COMMAND:
        return CommandHypervisor(settings.commands, directory.commands)
    driver = _machine_driver(settings, directory)
    if driver is not None:
        directory.machines.mkdir(mode=0o700, exist_ok=True)
        return MachineHypervisor(
            driver,
            MachineJournal(directory.machines / "acts.db"),
            settings.machines,
            is_confirmed_down=is_confirmed_down,
        )
    simulated = SimulatedHypervisor(
        EffectLedger(directory.ledger), SimulatedBehaviour.from_rules(list(settings.simulate))
    )
    return ProcessHypervisor(supervisors, simulated) if kind is HypervisorKind.PROCESS else simulated


def _machine_driver(settings: Settings, directory: DataDirectory) -> MachineDriver | None:
    """The driver of real VMs that the settings choose, or None."""
    definitions = directory.machines / "definitions"
    match settings.hypervisor:
        case HypervisorKind.QEMU:
            return QemuDriver(settings.qemu.hosts, copies=definitions, lock_directories=settings.qemu.lock_directories)
        case HypervisorKind.LIBVIRT:
            load_libvirt()
            return LibvirtDriver(settings.libvirt.hosts, definitions)
        case _:
            return None


DRAIN_TIMEOUT_S = 5.0  # for requests in progress when the service stops
_GC_THRESHOLD = 20_000  # new objects before a collection: what some hundred requests at once create
_SCOPES_PER_BATCH = 256  # concurrent transactions, which the store commits together


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStorage:
    """The open store of a service, its clock, and what its start means for the VMs."""

    store: Store  # open; the caller closes it
    clock: Clock  # of the service: lab time in a lab
    started_text: str = ""  # the history entry about the start; "": none, because another entry says it
    was_interrupted: bool = True  # VMs could not poll for a while: events that came due wait for the grace period
    may_act: Callable[[], bool] = lambda: True  # no act begins while it returns False
    cluster: ClusterControl | None = None  # the host nodes that answer VMs and act; None: this machine does


@asynccontextmanager
async def running_service(settings: Settings, *, new_store: bool = False) -> AsyncIterator[Service]:
    """Start the service, yield it once it answers, and stop it when the block is left.

    Stopping answers the requests in progress within DRAIN_TIMEOUT_S and writes all observations. The history gets an
    entry for the start, and one for the stop unless the block raises.
    """
    _ = settings.chosen_hypervisor  # refused before anything is opened
    async with AsyncExitStack() as stack:
        directory = DataDirectory.acquire(settings.directory)
        stack.callback(directory.close)
        directory.check_store(_store_purpose(settings), new_store=new_store)
        store = SqliteStore.open(directory.database)
        stack.push_async_callback(store.close)
        storage = ServiceStorage(
            store=store,
            clock=_open_clock(settings, store),
            started_text=f"{SERVICE_STARTED}, version {__version__}, process {os.getpid()}",
            cluster=await open_cluster_control(stack, settings) if settings.bus else None,
        )
        control, supervisors = await open_control(stack, settings, directory, storage)
        operator_server = await open_operator_server(settings, directory, control.store, control.clock.now())
        if operator_server is not None:
            stack.callback(operator_server.port.sock.close)
        metrics_sockets = bind_metrics(stack, settings)
        service, names = await start_service(
            stack, settings, directory, control, supervisors, operator_server, metrics_sockets[1:], storage.cluster
        )
        await _serve_operators(stack, service, directory, names)
        if metrics_sockets:
            metrics_server = HttpServer(metrics_pages(service.metrics.render_own))
            await metrics_server.start(sock=metrics_sockets[0])
            stack.push_async_callback(metrics_server.close)
        yield service
        await write_service_entry(control, SERVICE_STOPPED)


async def open_control(
    stack: AsyncExitStack, settings: Settings, directory: DataDirectory, storage: ServiceStorage
) -> tuple[ControlPlane, SupervisorRegistry]:
    """Open the hypervisor and the control plane on an open store; apply the initial fleet to an empty one.

    Nothing is performed before `start_service`. The stack closes what this opens, but not the store.
    """
    await mark_purpose(storage.store, _store_purpose(settings))
    supervisors = SupervisorRegistry(SupervisorRecords(directory.vms))

    def is_confirmed_down(host: str) -> bool:
        return control.placement.is_confirmed_down(host)  # no act is performed before the control plane exists

    hypervisor: Hypervisor
    if storage.cluster is not None:
        hypervisor = storage.cluster.hypervisor
    else:
        hypervisor = open_hypervisor(settings, directory, supervisors, is_confirmed_down)
    stack.push_async_callback(hypervisor.close)
    if isinstance(hypervisor, MachineHypervisor):
        await _run_in_background(stack, hypervisor.watch_capacity())
    control = ControlPlane(
        store=storage.store,
        clock=storage.clock,
        hypervisor=hypervisor,
        inputs=ControlInputs(
            new_id=_new_guid,
            polls=storage.store.last_polls,
            lab_addresses=settings.lab,
            http_client=settings.http_client,
            allow_command_checks=settings.allow_command_checks,
            was_interrupted=storage.was_interrupted,
            may_act=storage.may_act,
        ),
        policy=settings.policy,
    )
    stack.push_async_callback(control.close)
    if storage.started_text:
        await write_service_entry(control, storage.started_text)
    await _report_new_epoch(control)
    await apply_initial_fleet(control, settings)
    await _apply_enablement(control, settings)
    return control, supervisors


async def start_service(
    stack: AsyncExitStack,
    settings: Settings,
    directory: DataDirectory,
    control: ControlPlane,
    supervisors: SupervisorRegistry,
    operator_server: OperatorServer | None,
    worker_metrics_sockets: tuple[socket.socket, ...],
    cluster: ClusterControl | None = None,
) -> tuple[Service, FleetDirectory]:
    """Start what operators do not call: reconciler, webhooks, metadata, supervisors, maintenance jobs.

    The stack stops what this starts. `cluster` has the host nodes that answer VMs and act; with None, this machine
    does.
    """
    names = FleetDirectory(control.store)  # shared, because it holds the name of every VM
    stack.callback(names.close)
    publisher = MetadataPublisher.open(publisher_config(settings), control)
    control.rollouts.health.pace = lambda: publisher.frontend.observations.pace
    service = Service(
        settings=settings,
        control=control,
        publisher=publisher,
        cluster=cluster,
        supervisors=supervisors,
        operator_server=operator_server,
        metrics=ServiceMetrics(
            control,
            request_totals=(cluster or publisher.frontend).request_totals,
            worker_lags=publisher.frontend.worker_lags,
            count_polling=lambda live: _polling_report(publisher, names, live),
        ),
        started_at=control.clock.now(),
    )
    if cluster is not None:
        service.metrics.register(HostNodesCollector(cluster.describe_nodes))
    stack.callback(service.metrics.close)
    await _start_background_work(stack, service, worker_metrics_sockets)
    await _serve_supervisors(stack, service, directory, names)
    return service, names


async def _start_background_work(
    stack: AsyncExitStack, service: Service, metrics_sockets: tuple[socket.socket, ...]
) -> None:
    control, publisher, operator_server = service.control, service.publisher, service.operator_server
    frontend, cluster = publisher.frontend, service.cluster
    await _run_in_background(stack, control.reconciler.run())
    await _run_in_background(stack, control.webhook_delivery.run())
    await _run_in_background(stack, control.unannounced_changes.run())
    backend = GuestBackend(control, VmTokens(operator_server.sign_in, operator_server.url) if operator_server else None)
    if cluster is None:
        await publisher.start(backend, metrics_sockets)
    else:
        cluster.attach(control, publisher, backend, service.settings.serving)
        await publisher.start(backend, make_sink=cluster.make_streams)
        stack.push_async_callback(cluster.close)
    stack.push_async_callback(write_all_observations, frontend.observations, control.store)
    stack.push_async_callback(record_fault_effects, frontend.faults, control.faults)
    stack.push_async_callback(publisher.drain, DRAIN_TIMEOUT_S)
    if cluster is not None:
        await cluster.start()  # the bus may refuse it: then the publisher is drained
    await _run_in_background(stack, record_fault_effects_forever(frontend.faults, control.faults))
    await _run_in_background(stack, write_observations_forever(frontend.observations, control.store))
    stack.push_async_callback(save_clock, control.lab_clock)
    await _run_in_background(stack, save_clock_forever(control.lab_clock))
    await _run_in_background(
        stack, prune_history_forever(control.store, control.clock, days=service.settings.history_days)
    )


async def _serve_operators(
    stack: AsyncExitStack, service: Service, directory: DataDirectory, names: FleetDirectory
) -> None:
    dependencies = web_dependencies(service, directory)
    await stack.enter_async_context(serve_unix(build_web_app(dependencies, directory=names), directory.socket))
    if service.operator_server is not None:
        await stack.enter_async_context(service.operator_server.serve(dependencies, names))


def _new_guid() -> str:
    return str(uuid.uuid4()).upper()


def _store_purpose(settings: Settings) -> StorePurpose:
    return StorePurpose.LAB if settings.lab else StorePurpose.PRODUCTION


def _open_clock(settings: Settings, store: Store) -> Clock:
    """The clock of the service, with the position that a lab has saved."""
    return LabClock(load_clock_setting(store)) if settings.lab else SystemClock()


async def _serve_supervisors(
    stack: AsyncExitStack, service: Service, directory: DataDirectory, names: FleetDirectory
) -> None:
    control, publisher = service.control, service.publisher

    async def write_history(kind: EntryKind, vm: Vm, text: str) -> None:
        await _write_entry(control, _program_entry(vm, kind, text, control.clock.now()))

    def find_vm(name: str) -> Vm:
        try:
            return names.find(name)
        except ForewarnError as error:  # a supervisor prints it to a user of the command line
            raise type(error)(message_for(error, Surface.CLI)) from error

    async def listen(vm_key: str, sock: socket.socket) -> StopListening:
        listener = await publisher.frontend.listen_inside_vm(vm_key, sock)
        return partial(publisher.frontend.stop_listening, listener)

    server = SupervisorServer(
        supervisors=service.supervisors,
        find_vm=find_vm,
        listen=listen,
        write_history=write_history,
    )
    path = directory.supervisor_socket
    await stack.enter_async_context(server.serve(bind_unix_socket(path), path))
    if service.settings.hypervisor is HypervisorKind.PROCESS:
        starter = ProgramStarter(
            store=control.store, supervisors=service.supervisors, data=directory.path, write_history=write_history
        )
        await _run_in_background(stack, starter.run())


def bind_metrics(stack: AsyncExitStack, settings: Settings) -> tuple[socket.socket, ...]:
    """Bind the sockets for metrics: the first for this process, then one per worker; () without metrics."""
    if not settings.metrics:
        return ()
    sockets = bind_metrics_sockets(*parse_metrics_address(settings.metrics), workers=settings.workers)
    for sock in sockets:
        stack.callback(sock.close)
    return sockets


async def _polling_report(publisher: MetadataPublisher, names: FleetDirectory, live: Sequence[Event]) -> PollingReport:
    observations = publisher.frontend.observations
    return await polling_report(names, observations.pace, observations.paces, live)


async def _run_in_background(stack: AsyncExitStack, work: Any) -> None:
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off within the `with` block, and exempt the objects that exist at its end."""
    # They are the state of the whole fleet: never garbage, and slow to search.
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])
        gc.enable()


async def write_service_entry(control: ControlPlane, text: str) -> None:
    """Write an entry about the service itself to the history; a failure is logged, not raised."""
    await _write_entry(
        control, HistoryEntry(at=control.clock.now(), kind=EntryKind.SERVICE, actor="forewarn", text=text)
    )


async def _report_new_epoch(control: ControlPlane) -> None:
    """Add it to the history, once, that every scope has got a new epoch while no service ran."""
    renewal = read_renewal(control.store.load(RENEWAL_NAME))
    if renewal is None or renewal.is_in_history:
        return
    text = f"every scope has the new epoch {renewal.epoch}, because {renewal.reason}"
    if renewal.is_loss:
        log.warning("%s", text)
    entry = HistoryEntry(at=control.clock.now(), kind=EntryKind.SERVICE, actor="forewarn", text=text)
    reported = msgspec.json.encode(msgspec.structs.replace(renewal, is_in_history=True))
    await control.store.commit(Commit(entries=(entry,), saved=(SavedValue(name=RENEWAL_NAME, value=reported),)))


async def _write_entry(control: ControlPlane, entry: HistoryEntry) -> None:
    try:
        await control.store.commit(Commit(entries=(entry,)))
    except Exception as error:
        log.warning("a history entry could not be written: %s", error)


async def _apply_enablement(control: ControlPlane, settings: Settings) -> None:
    """Bring stored scopes in line with the setting 'enablement', which may have been another one (spec §8.2, §8.3)."""
    policy = control.transactions.policy
    if settings.enablement is EnablementMode.ALWAYS:
        outdated = control.store.scope_ids(enabled=False)
    else:  # scopes that were stored under `always` do not wake to be disabled
        idle_times = ((scope, scope_idle_at(scope, policy)) for scope in control.store.scopes())
        outdated = [s.id for s, at in idle_times if at is not None and (s.wakes_at is None or s.wakes_at > at)]

    def decision(scope: Scope, context: DecisionContext) -> Scope:
        if policy.enablement is EnablementMode.ALWAYS:
            return enable_scope(scope, by="the service", now=context.now)
        return scope  # its next wake time is set with each commit

    for at in range(0, len(outdated), _SCOPES_PER_BATCH):
        await asyncio.gather(
            *(control.transactions.run(scope_id, decision) for scope_id in outdated[at : at + _SCOPES_PER_BATCH])
        )


def _program_entry(vm: Vm, what: EntryKind, text: str, at: float) -> HistoryEntry:
    return HistoryEntry(at=at, kind=what, actor="forewarn", text=text, scope_id=vm.scope_id, vm=vm.name)
