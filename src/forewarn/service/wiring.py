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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
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
from forewarn.errors import ForewarnError
from forewarn.hypervisor.command import CommandHypervisor
from forewarn.hypervisor.interface import Hypervisor
from forewarn.hypervisor.ledger import EffectLedger
from forewarn.hypervisor.libvirt.driver import LibvirtDriver
from forewarn.hypervisor.libvirt.session import load_libvirt
from forewarn.hypervisor.machines.acts import MachineHypervisor
from forewarn.hypervisor.machines.driver import MachineDriver
from forewarn.hypervisor.machines.journal import MachineJournal
from forewarn.hypervisor.process.hypervisor import ProcessHypervisor
from forewarn.hypervisor.process.registry import SupervisorRecords, SupervisorRegistry
from forewarn.hypervisor.process.server import StopListening, SupervisorServer
from forewarn.hypervisor.process.starter import ProgramStarter
from forewarn.hypervisor.qemu.driver import QemuDriver
from forewarn.hypervisor.simulated import SimulatedBehaviour, SimulatedHypervisor
from forewarn.metadata.socket_passing import SOCKETS_FILE
from forewarn.metrics.http_server import MetricsServer, bind_metrics_sockets
from forewarn.metrics.service_metrics import ServiceMetrics
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.versions import VERSIONS
from forewarn.service.data_directory import DataDirectory
from forewarn.service.doctor import hypervisor_checks, run_checks, worker_checks
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
from forewarn.service.settings import HypervisorKind, Settings, SocketOwner, parse_metrics_address
from forewarn.service.web_app import build_web_app
from forewarn.service.web_server import OperatorServer, open_operator_server
from forewarn.store.interface import Store
from forewarn.store.purpose import StorePurpose, mark_purpose
from forewarn.store.sqlite import SqliteStore
from forewarn.unix_socket import bind_unix_socket
from forewarn.web.dependencies import Dependencies
from forewarn.web.directory import FleetDirectory
from forewarn.web.polling_report import PollingReport, polling_report
from forewarn.web.remedies import Surface, message_for
from forewarn.web.server import serve_unix
from forewarn.web.sign_in_links import sign_in_link_identity
from forewarn.workers.publisher import GuestBackend, MetadataPublisher, PublisherConfig

log = logging.getLogger(__name__)
DRAIN_TIMEOUT_S = 5.0  # for requests in progress when the service stops
_MAX_ENDPOINTS = 1000  # VMs of a lab whose addresses `info` lists
_SCOPES_PER_BATCH = 256  # concurrent transactions, which the store commits together


def _open_hypervisor(
    settings: Settings,
    directory: DataDirectory,
    supervisors: SupervisorRegistry,
    is_confirmed_down: Callable[[str], bool],
) -> Hypervisor:
    """Opens the hypervisor that the settings choose, on the files of the data directory.

    `supervisors` is the registry that the process hypervisor uses; `is_confirmed_down` says whether an operator has
    confirmed that a host is down, by its name, for hypervisors that move real VMs. The caller closes the hypervisor.
    Raises Rejected if a rule of `simulate`, a command or one of these files is wrong or a library is missing,
    Unavailable if the ledger cannot be opened.
    """
    kind = settings.chosen_hypervisor
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
        EffectLedger.open(directory.ledger), SimulatedBehaviour.from_rules(list(settings.simulate))
    )
    return ProcessHypervisor(supervisors, simulated) if kind is HypervisorKind.PROCESS else simulated


def _machine_driver(settings: Settings, directory: DataDirectory) -> MachineDriver | None:
    """The driver of real VMs that the settings choose, or None. Rejected if its library is missing."""
    definitions = directory.machines / "definitions"
    match settings.hypervisor:
        case HypervisorKind.QEMU:
            return QemuDriver(settings.qemu.hosts, copies=definitions)
        case HypervisorKind.LIBVIRT:
            load_libvirt()
            return LibvirtDriver(settings.libvirt.hosts, definitions)
        case _:
            return None


def publisher_config(settings: Settings) -> PublisherConfig:
    """Return the part of the settings that the metadata publisher needs. Rejected if a listener is wrong."""
    rules = EndpointRules(
        versions=VERSIONS,
        header_always=settings.require_header,
        unknown_version=settings.unknown_version,
        iso_dates=settings.iso_dates,
        gives_tokens=settings.identity_on_loopback,
    )
    return PublisherConfig(
        is_lab=settings.lab,
        port=settings.port,
        one_port_per_vm=settings.one_port_per_vm,
        workers=settings.workers,
        first_answer_delay_s=settings.first_answer_delay_s,
        requests_per_s=settings.requests_per_s or None,
        rules=rules,
        rules_by_location={name: replace(rules, versions=versions) for name, versions in settings.versions.items()},
        listeners=settings.metadata_listeners,
        helper_socket=settings.directory / SOCKETS_FILE if settings.sockets is SocketOwner.HELPER else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running service, as `running_service` yields it, for the code that reports on it."""

    settings: Settings
    control: ControlPlane
    publisher: MetadataPublisher  # serves the documents to the VMs
    supervisors: SupervisorRegistry  # of the namespace VMs
    operator_server: OperatorServer | None  # None: operators are served only on the unix socket
    metrics: ServiceMetrics
    started_at: float  # lab time

    def info(self) -> dict[str, Any]:
        """The answer to `GET /service`: version, process, clock, listeners, workers, console and counts.

        Its keys: version, pid, data, started_at, now, lab, speed, enablement, hypervisor (its `name`, and `text` which
        says what it acts on), identity_on_loopback, listeners, workers, console, counts and endpoints (the first VMs of
        a lab, each with its name `vm` and its `url`). The values can be encoded as JSON. Times are lab time; "console"
        is None without an HTTPS port, else as `OperatorServer.describe` returns it.
        """
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
            "hypervisor": {
                "name": self.settings.chosen_hypervisor,
                "text": self.settings.chosen_hypervisor.description,
            },
            "identity_on_loopback": self.settings.identity_on_loopback,
            "listeners": self.publisher.describe_listeners(),
            "workers": self.publisher.frontend.describe_workers(),
            "console": self.operator_server.describe() if self.operator_server else None,
            "counts": self.control.store.counts()._asdict(),
            "endpoints": [{"vm": name, "url": url} for name, url in self.lab_endpoints(_MAX_ENDPOINTS)],
        }

    def pending_events(self) -> int:
        """The number of events of all scopes that are scheduled or started, and so not over."""
        return self.control.store.counts().events

    def lab_endpoints(self, limit: int) -> list[tuple[str, str]]:
        """The first served VMs of a lab as pairs of name and base URL for polls; empty outside a lab.

        At most `limit`, in the order in which the VMs were added to the fleet.
        """
        vms = filter(None, map(self.control.store.vm, self.control.placement.vm_keys()))
        endpoints = ((vm.name, self.publisher.lab_endpoint(vm)) for vm in vms)
        return list(islice(((name, url) for name, url in endpoints if url), limit))

    def sign_in_link(self) -> str:
        """Create a one-time link that signs the local user in to the portal; returns its URL.

        It signs in the client `admin` or the owner, see `sign_in_link_identity`, and is valid for 15 minutes. "" if the
        service has no HTTPS port, and so no portal.
        """
        if self.operator_server is None:
            return ""
        identity = sign_in_link_identity(
            owner_principal(owner_name()), self.operator_server.sign_in, self.control.store
        )
        return self.operator_server.links.create(identity).url


@asynccontextmanager
async def running_service(settings: Settings, *, new_store: bool = False) -> AsyncIterator[Service]:
    """Start the service, yield it once it answers, and stop it when the block is left.

    `new_store` starts with an empty store where the database of an earlier service is missing. Raises Rejected if the
    settings, the data directory or a port cannot be used, Refused if another service uses the directory or its store
    must not be opened, Unavailable if a worker fails to start or the store cannot be written. Stopping answers the
    requests in progress within DRAIN_TIMEOUT_S and writes all observations. The history gets an entry for the start,
    and one for the stop unless the block raises.
    """
    _ = settings.chosen_hypervisor  # refused before anything is opened
    async with AsyncExitStack() as stack:
        directory = DataDirectory.acquire(settings.directory)
        stack.callback(directory.close)
        directory.check_store(_store_purpose(settings), new_store=new_store)
        supervisors = SupervisorRegistry(SupervisorRecords(directory.vms))
        control = await _open_control(stack, settings, directory, supervisors)
        names = FleetDirectory(control.store)  # shared, because it holds the name of every VM
        operator_server = await open_operator_server(settings, directory, control.store, control.clock.now())
        if operator_server is not None:
            stack.callback(operator_server.sock.close)
        metrics_sockets = _bind_metrics(stack, settings)
        publisher = MetadataPublisher.open(publisher_config(settings), control)
        service = Service(
            settings=settings,
            control=control,
            publisher=publisher,
            supervisors=supervisors,
            operator_server=operator_server,
            metrics=ServiceMetrics(
                control,
                request_totals=publisher.frontend.request_totals,
                worker_lags=publisher.frontend.worker_lags,
                count_polling=lambda live: _polling_report(publisher, names, live),
            ),
            started_at=control.clock.now(),
        )
        stack.callback(service.metrics.close)
        await _start_background_work(stack, service, metrics_sockets[1:])
        await _serve_supervisors(stack, service, directory)
        await _serve_operators(stack, service, directory, names)
        if metrics_sockets:
            metrics_server = MetricsServer(service.metrics.render_own)
            await metrics_server.start(metrics_sockets[0])
            stack.push_async_callback(metrics_server.close)
        yield service
        await _write_service_entry(control, "service stopped")


async def _open_control(
    stack: AsyncExitStack, settings: Settings, directory: DataDirectory, supervisors: SupervisorRegistry
) -> ControlPlane:
    """Open store, clock, hypervisor and control plane; apply the initial fleet to an empty store."""
    store = SqliteStore.open(directory.database)
    stack.push_async_callback(store.close)
    await mark_purpose(store, _store_purpose(settings))

    def is_confirmed_down(host: str) -> bool:
        return control.placement.is_confirmed_down(host)  # no act is performed before the control plane exists

    hypervisor = _open_hypervisor(settings, directory, supervisors, is_confirmed_down)
    stack.push_async_callback(hypervisor.close)
    control = ControlPlane(
        store=store,
        clock=_open_clock(settings, store),
        hypervisor=hypervisor,
        inputs=ControlInputs(
            new_id=_new_guid,
            polls=store.last_polls,
            lab_addresses=settings.lab,
            http_client=settings.http_client,
        ),
        policy=settings.policy,
    )
    stack.push_async_callback(control.close)
    await _write_service_entry(control, f"service started, version {__version__}, process {os.getpid()}")
    await apply_initial_fleet(control, settings)
    await _enable_all_scopes(control, settings)
    return control


async def _start_background_work(
    stack: AsyncExitStack, service: Service, metrics_sockets: tuple[socket.socket, ...]
) -> None:
    """Start the reconciler, webhook delivery and the metadata server, and the maintenance jobs."""
    control, publisher, operator_server = service.control, service.publisher, service.operator_server
    frontend = publisher.frontend
    await _run_in_background(stack, control.reconciler.run())
    await _run_in_background(stack, control.webhook_delivery.run())
    await publisher.start(
        GuestBackend(control, VmTokens(operator_server.sign_in, operator_server.url) if operator_server else None),
        metrics_sockets,
    )
    stack.push_async_callback(write_all_observations, frontend.observations, control.store)
    stack.push_async_callback(record_fault_effects, frontend.faults, control.faults)
    stack.push_async_callback(publisher.drain, DRAIN_TIMEOUT_S)
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
    """Serve operators on the unix socket and, if the settings say so, on the HTTPS port."""
    dependencies = _web_dependencies(service, directory)
    await stack.enter_async_context(serve_unix(build_web_app(dependencies, directory=names), directory.socket))
    if service.operator_server is not None:
        await stack.enter_async_context(service.operator_server.serve(dependencies, names))


def _new_guid() -> str:
    """Return a new random GUID in upper case, as Azure writes event ids."""
    return str(uuid.uuid4()).upper()


def _store_purpose(settings: Settings) -> StorePurpose:
    return StorePurpose.LAB if settings.lab else StorePurpose.PRODUCTION


def _open_clock(settings: Settings, store: Store) -> Clock:
    """The clock of the service, with the position that a lab has saved."""
    return LabClock(load_clock_setting(store)) if settings.lab else SystemClock()


async def _serve_supervisors(stack: AsyncExitStack, service: Service, directory: DataDirectory) -> None:
    """Accept the supervisors of namespace VMs, and start those that the fleet file asks for."""
    control, publisher = service.control, service.publisher

    async def write_history(kind: EntryKind, vm: Vm, text: str) -> None:
        await _write_entry(control, _program_entry(vm, kind, text, control.clock.now()))

    @cache
    def names() -> FleetDirectory:  # built on first use: a fleet without namespace VMs never needs it
        return FleetDirectory(control.store)

    def find_vm(name: str) -> Vm:
        try:
            return names().find(name)
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


def _web_dependencies(service: Service, directory: DataDirectory) -> Dependencies:
    frontend = service.publisher.frontend

    async def doctor() -> list[Any]:
        found = await asyncio.to_thread(run_checks, service.settings, directory.database)
        workers = worker_checks(frontend.describe_workers())
        executor = service.control.executor
        unreachable = executor.progress.unreachable_hosts()
        return [*found, *workers, *hypervisor_checks(service.settings, executor.unanswered_s(), unreachable)]

    async def observe() -> None:
        await frontend.collect_worker_reports()
        await write_observation_batches(frontend.observations, service.control.store)
        await record_fault_effects(frontend.faults, service.control.faults)

    return Dependencies(
        control=service.control,
        service_info=service.info,
        run_health_checks=doctor,
        owner_name=owner_name(),
        endpoint_of=service.publisher.lab_endpoint,
        rules_for=publisher_config(service.settings).rules_for,
        vm_supervisors=lambda: service.supervisors.connections,
        flush_observations=observe,
        subscribe_deliveries=frontend.observations.subscribe_deliveries,
        subscribe_polling=frontend.observations.subscribe_polling_starts,
        pace_of=frontend.observations.pace,
        render_metrics=service.metrics.render_all,
        wait_until_published=service.publisher.wait_until_published,
        sign_in=service.operator_server.sign_in if service.operator_server else None,
        sign_in_links=service.operator_server.links if service.operator_server else None,
        strict_api_versions=service.settings.strict_api_versions,
        hypervisor_text=_hypervisor_text(service.settings),
    )


def _hypervisor_text(settings: Settings) -> str:
    return f"{settings.chosen_hypervisor}: {settings.chosen_hypervisor.description}"


def owner_name() -> str:
    """Return `local user NAME`, with the login name of this process's user, as the history shows it."""
    return f"local user {getpass.getuser()}"


def _bind_metrics(stack: AsyncExitStack, settings: Settings) -> tuple[socket.socket, ...]:
    """Bind the sockets for metrics: the first for this process, then one per worker."""
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
    """Run this beside everything else until the stack unwinds, then cancel it."""
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
        log.warning("a history entry could not be written: %s", error)


async def _enable_all_scopes(control: ControlPlane, settings: Settings) -> None:
    """Enable every scope if the setting 'enablement' is 'always': stored scopes may be older (spec §8.3)."""
    if settings.enablement is not EnablementMode.ALWAYS:
        return

    def decision(scope: Scope, context: DecisionContext) -> Scope:
        return enable_scope(scope, by="the service", now=context.now)

    missing = control.store.scope_ids(enabled=False)
    for at in range(0, len(missing), _SCOPES_PER_BATCH):
        await asyncio.gather(
            *(control.transactions.run(scope_id, decision) for scope_id in missing[at : at + _SCOPES_PER_BATCH])
        )


def _program_entry(vm: Vm, what: EntryKind, text: str, at: float) -> HistoryEntry:
    """Make a history entry about the program that a namespace VM runs; does not store it.

    `what` is its kind, `text` what happened, in words, and `at` is lab time.
    """
    return HistoryEntry(at=at, what=what, who="forewarn", text=text, scope_id=vm.scope_id, vm=vm.name)
