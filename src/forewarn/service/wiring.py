"""Builds one service from settings, starts its parts in order, and stops them in reverse order.

`running_service` is the entry point: store, clock, hypervisor and control first, then metadata, supervisors,
operators.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

from forewarn import __version__
from forewarn.auth.token_service import VmTokens
from forewarn.clock import Clock, LabClock, SystemClock
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.lab_clock import load_clock_setting
from forewarn.core.access import owner_principal
from forewarn.core.commit import Commit
from forewarn.core.decision import DecisionContext, EnablementMode
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.scope import Scope, enable_scope
from forewarn.errors import ForewarnError, Rejected
from forewarn.hypervisor.command import CommandHypervisor
from forewarn.hypervisor.interface import Hypervisor
from forewarn.hypervisor.ledger import EffectLedger
from forewarn.hypervisor.process.hypervisor import ProcessHypervisor
from forewarn.hypervisor.process.registry import SupervisorRecords, SupervisorRegistry
from forewarn.hypervisor.process.server import StopListening, SupervisorServer
from forewarn.hypervisor.process.starter import ProgramStarter
from forewarn.hypervisor.simulated import SimulatedBehaviour, SimulatedHypervisor
from forewarn.metrics.http_server import MetricsServer, bind_metrics_sockets
from forewarn.metrics.service_metrics import ServiceMetrics
from forewarn.service.data_directory import DataDirectory
from forewarn.service.doctor import run_checks, worker_checks
from forewarn.service.first_start import apply_initial_fleet
from forewarn.service.maintenance_jobs import (
    prune_history_forever,
    record_fault_effects,
    record_fault_effects_forever,
    save_clock,
    save_clock_forever,
    write_all_observations,
    write_observation_batches,
    write_observations_forever,
)
from forewarn.service.publisher import GuestBackend, MetadataPublisher
from forewarn.service.settings import HypervisorKind, Settings, parse_metrics_address
from forewarn.service.web_app import build_web_app
from forewarn.service.web_server import OperatorServer, open_operator_server
from forewarn.store.interface import Store
from forewarn.store.sqlite import SqliteStore
from forewarn.web.dependencies import Dependencies
from forewarn.web.directory import FleetDirectory
from forewarn.web.polling_report import PollingReport, polling_report
from forewarn.web.remedies import Surface, message_for
from forewarn.web.server import bind_unix_socket, serve_unix
from forewarn.web.sign_in_links import sign_in_link_identity


def open_hypervisor(settings: Settings, directory: DataDirectory, keepers: SupervisorRegistry) -> Hypervisor:
    if settings.hypervisor is HypervisorKind.COMMAND:
        return CommandHypervisor(settings.commands, directory.commands)
    simulated = SimulatedHypervisor(
        EffectLedger.open(directory.ledger), SimulatedBehaviour.from_rules(list(settings.simulate))
    )
    return ProcessHypervisor(keepers, simulated) if settings.hypervisor is HypervisorKind.PROCESS else simulated


log = logging.getLogger(__name__)
DRAIN_TIMEOUT_S = 5.0
_SCOPES_PER_BATCH = 256  # scopes decided side by side, so that the store can commit them together


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that runs, for whoever wants to tell people about it."""

    settings: Settings
    control: ControlPlane
    publisher: MetadataPublisher
    supervisors: SupervisorRegistry
    operator_server: OperatorServer | None
    metrics: ServiceMetrics
    started_at: float

    def info(self) -> dict[str, Any]:
        now, speed, lab = self.control.lab_clock.status()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "data": self.settings.data,
            "started_at": self.started_at,
            "now": now,
            "lab": lab,
            "speed": speed,
            "enablement": self.settings.enablement,
            "identity_on_loopback": self.settings.identity_on_loopback,
            "listeners": self.publisher.describe_listeners(),
            "workers": self.publisher.describe_workers(),
            "console": self.operator_server.describe() if self.operator_server else None,
            "counts": self.control.store.counts()._asdict(),
        }

    def pending_events(self) -> int:
        """How many events are not over."""
        return self.control.store.counts().events

    def lab_endpoints(self, most: int) -> list[tuple[str, str]]:
        """The first VMs of a lab, each with the base URL under which it is served."""
        seated = ((vm.name, self.publisher.lab_endpoint(vm)) for vm in self.control.store.vms())
        return list(islice(((name, url) for name, url in seated if url), most))

    def sign_in_link(self) -> str:
        """To the portal, for whoever started this: good once, and soon. "" where there is no portal."""
        if self.operator_server is None:
            return ""
        whom = sign_in_link_identity(owner_principal(owner_name()), self.operator_server.sign_in, self.control.store)
        return self.operator_server.links.create(whom).url


@asynccontextmanager
async def running_service(settings: Settings) -> AsyncIterator[Service]:
    """The service, from the moment it answers until the block is left."""
    async with AsyncExitStack() as stack:
        directory = DataDirectory.acquire(settings.directory)
        stack.callback(directory.close)
        keepers = SupervisorRegistry(SupervisorRecords(directory.vms))
        control = await _open_control(stack, settings, directory, keepers)
        names = FleetDirectory(control.store)  # one for all, since it holds the name of every VM
        front = await open_operator_server(settings, directory, control.store, control.clock.now())
        if front is not None:
            stack.callback(front.sock.close)
        windows = _bind_metrics(stack, settings)
        mouth = MetadataPublisher.open(settings, control)
        service = Service(
            settings=settings,
            control=control,
            publisher=mouth,
            supervisors=keepers,
            operator_server=front,
            metrics=ServiceMetrics(
                control,
                counted=mouth.request_totals,
                behind=mouth.worker_lags,
                attend=lambda live: _polling_report(mouth, names, live),
            ),
            started_at=control.clock.now(),
        )
        stack.callback(service.metrics.close)
        await _start_background_work(stack, service, windows[1:])
        await _serve_supervisors(stack, service, directory)
        await _serve_operators(stack, service, directory, names)
        if windows:
            window = MetricsServer(service.metrics.render_own)
            await window.start(windows[0])
            stack.push_async_callback(window.close)
        yield service
        await _write_service_entry(control, "service stopped")


async def _open_control(
    stack: AsyncExitStack, settings: Settings, directory: DataDirectory, keepers: SupervisorRegistry
) -> ControlPlane:
    """What is stored, and whoever decides about it: where the last service left off, or at the first fleet."""
    store = SqliteStore.open(directory.database)
    stack.push_async_callback(store.close)
    hypervisor = open_hypervisor(settings, directory, keepers)
    stack.push_async_callback(hypervisor.close)
    control = ControlPlane(
        store=store,
        clock=_open_clock(settings, store),
        hypervisor=hypervisor,
        inputs=ControlInputs(new_id=new_guid, polls=store.last_polls, lab_addresses=settings.lab),
        policy=settings.policy,
    )
    stack.push_async_callback(control.close)
    await _write_service_entry(control, f"service started, version {__version__}, process {os.getpid()}")
    await apply_initial_fleet(control, settings)
    await _enable_all_scopes(control, settings)
    return control


async def _start_background_work(stack: AsyncExitStack, service: Service, windows: tuple[socket.socket, ...]) -> None:
    """VMs are answered, and what goes on by itself does."""
    control, mouth, front = service.control, service.publisher, service.operator_server
    await _run_in_background(stack, control.reconciler.run())
    await _run_in_background(stack, control.webhook_delivery.run())
    await mouth.start(GuestBackend(control, VmTokens(front.sign_in, front.url) if front else None), windows)
    stack.push_async_callback(write_all_observations, mouth.observations, control.store)
    stack.push_async_callback(record_fault_effects, mouth.faults, control.faults)
    stack.push_async_callback(mouth.drain, DRAIN_TIMEOUT_S)
    await _run_in_background(stack, record_fault_effects_forever(mouth.faults, control.faults))
    await _run_in_background(stack, write_observations_forever(mouth.observations, control.store))
    stack.push_async_callback(save_clock, control.lab_clock)
    await _run_in_background(stack, save_clock_forever(control.lab_clock))
    await _run_in_background(
        stack, prune_history_forever(control.store, control.clock, days=service.settings.history_days)
    )


async def _serve_operators(
    stack: AsyncExitStack, service: Service, directory: DataDirectory, names: FleetDirectory
) -> None:
    """Operators are answered, on the socket and, where the settings want it, on a port."""
    house = _web_dependencies(service, directory)
    await stack.enter_async_context(serve_unix(build_web_app(house, directory=names), directory.socket))
    if service.operator_server is not None:
        await stack.enter_async_context(service.operator_server.serve(house, names))


def new_guid() -> str:
    return str(uuid.uuid4()).upper()


def _open_clock(settings: Settings, store: Store) -> Clock:
    stored = load_clock_setting(store)
    if settings.lab:
        return LabClock(stored)
    clock = SystemClock()
    if stored is not None and stored.lab_time_at(clock.now()) > clock.now() + 1:
        raise Rejected(
            f"the data directory {settings.data!r} is a lab's, whose clock was moved ahead, and time never moves back "
            "(spec §12): serve another directory, or go on with this one by `forewarn up`"
        )
    return clock


async def _serve_supervisors(stack: AsyncExitStack, service: Service, directory: DataDirectory) -> None:
    """Accept the supervisors of namespace VMs, and start those that the fleet file asks for."""
    control, publisher = service.control, service.publisher

    async def write_history(kind: EntryKind, vm: Vm, text: str) -> None:
        await _write_entry(control, program_entry(vm, kind, text, control.clock.now()))

    @cache
    def names() -> FleetDirectory:  # built on first use: a fleet without namespace VMs never needs it
        return FleetDirectory(control.store)

    def find_vm(name: str) -> Vm:
        try:
            return names().find(name)
        except ForewarnError as error:  # a supervisor prints it to a user of the command line
            raise type(error)(message_for(error, Surface.CLI)) from error

    async def listen(vm_key: str, sock: socket.socket) -> StopListening:
        listener = await publisher.listen_inside_vm(vm_key, sock)
        return partial(publisher.stop_listening, listener)

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


def _web_dependencies(service: Service, directory: DataDirectory) -> Dependencies:
    async def doctor() -> list[Any]:
        found = await asyncio.to_thread(run_checks, service.settings, directory.database)
        return [*found, *worker_checks(service.publisher.describe_workers())]

    async def observe() -> None:
        await service.publisher.collect_worker_reports()
        await write_observation_batches(service.publisher.observations, service.control.store)
        await record_fault_effects(service.publisher.faults, service.control.faults)

    return Dependencies(
        control=service.control,
        service_info=service.info,
        run_health_checks=doctor,
        owner_name=owner_name(),
        endpoint_of=service.publisher.lab_endpoint,
        rules_for=service.publisher.rules_for,
        vm_supervisors=lambda: service.supervisors.connections,
        flush_observations=observe,
        subscribe_deliveries=service.publisher.observations.subscribe_deliveries,
        subscribe_polling=service.publisher.observations.subscribe_polling_starts,
        pace_of=service.publisher.observations.pace,
        render_metrics=service.metrics.render_all,
        wait_until_published=service.publisher.wait_until_published if service.settings.workers else None,
        sign_in=service.operator_server.sign_in if service.operator_server else None,
        sign_in_links=service.operator_server.links if service.operator_server else None,
        strict_api_versions=service.settings.strict_api_versions,
    )


def owner_name() -> str:
    """How the history calls whoever the service belongs to."""
    return f"local user {getpass.getuser()}"


def _bind_metrics(stack: AsyncExitStack, settings: Settings) -> tuple[socket.socket, ...]:
    """Where metrics are shown: by the owner, then by each worker."""
    if not settings.metrics:
        return ()
    sockets = bind_metrics_sockets(*parse_metrics_address(settings.metrics), workers=settings.workers)
    for sock in sockets:
        stack.callback(sock.close)
    return sockets


async def _polling_report(mouth: MetadataPublisher, names: FleetDirectory, live: Sequence[Event]) -> PollingReport:
    return await polling_report(names, mouth.observations.pace, mouth.observations.paces, live)


async def _run_in_background(stack: AsyncExitStack, work: Any) -> None:
    """Run this beside everything else until the stack unwinds."""
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


async def _write_service_entry(control: ControlPlane, text: str) -> None:
    await _write_entry(control, HistoryEntry(at=control.clock.now(), what=EntryKind.SERVICE, who="forewarn", text=text))


async def _write_entry(control: ControlPlane, entry: HistoryEntry) -> None:
    try:
        await control.store.commit(Commit(entries=(entry,)))
    except Exception as error:
        log.warning("the history could not be written: %s", error)


async def _enable_all_scopes(control: ControlPlane, settings: Settings) -> None:
    """A lab on data that knew another setting: every scope is enabled from now on (spec §8.3)."""
    if settings.enablement is not EnablementMode.ALWAYS:
        return

    def decision(scope: Scope, around: DecisionContext) -> Scope:
        return enable_scope(scope, by="the service", now=around.now)

    missing = control.store.scope_ids(enabled=False)
    for at in range(0, len(missing), _SCOPES_PER_BATCH):
        await asyncio.gather(
            *(control.transactions.run(scope_id, decision) for scope_id in missing[at : at + _SCOPES_PER_BATCH])
        )


def program_entry(vm: Vm, what: EntryKind, text: str, at: float) -> HistoryEntry:
    return HistoryEntry(at=at, what=what, who="forewarn", text=text, scope_id=vm.scope_id, vm=vm.name)
