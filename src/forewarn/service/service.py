"""A running service, for the code that reports on it, and what its web surfaces need of it."""

from __future__ import annotations

import asyncio
import getpass
import os
from dataclasses import dataclass
from itertools import islice
from typing import Any

from forewarn import __version__
from forewarn.base.times import LabTime, timestamp
from forewarn.cluster.control_side import ClusterControl
from forewarn.control.control_plane import ControlPlane
from forewarn.core.access import owner_principal
from forewarn.machines.process.hypervisor import SupervisorRegistry
from forewarn.metadata.socket_passing import SOCKETS_FILE
from forewarn.metadata.workers.publisher import MetadataPublisher, PublisherConfig
from forewarn.service.data_directory import DataDirectory
from forewarn.service.doctor import hypervisor_checks, run_checks, worker_checks
from forewarn.service.maintenance_jobs import record_fault_effects, write_observation_batches
from forewarn.service.settings import Settings, SocketOwner
from forewarn.service.web_server import OperatorServer
from forewarn.web.access import sign_in_link_identity
from forewarn.web.dependencies import Dependencies
from forewarn.web.metrics import ServiceMetrics

_MAX_ENDPOINTS = 1000  # VMs of a lab whose addresses `info` lists


def publisher_config(settings: Settings) -> PublisherConfig:
    """Return the part of the settings that the metadata publisher needs. Opens nothing."""
    return PublisherConfig(
        is_lab=settings.lab,
        port=settings.port,
        one_port_per_vm=settings.one_port_per_vm,
        workers=settings.workers,
        serving=settings.serving,
        listeners=settings.metadata_listeners,
        helper_socket=settings.directory / SOCKETS_FILE if settings.sockets is SocketOwner.HELPER else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running service with its parts, as `running_service` yields it. It starts and stops nothing."""

    settings: Settings
    control: ControlPlane
    publisher: MetadataPublisher  # shows the documents to VMs, or gives them to `cluster`
    cluster: ClusterControl | None = None  # the host nodes that answer VMs and act; None: this machine does
    supervisors: SupervisorRegistry  # of the namespace VMs, and their connections
    operator_server: OperatorServer | None  # None: operators are served only on the unix socket
    metrics: ServiceMetrics
    started_at: LabTime

    def info(self) -> dict[str, Any]:
        """Return the answer to `GET /service`: version, clock, listeners, workers, API, counts and more."""
        now, speed, lab = self.control.lab_clock.status()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "data": self.settings.data,
            "started_at": timestamp(self.started_at),
            "now": timestamp(now),
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
            **({"nodes": self.cluster.describe_nodes()} if self.cluster else {}),
            "api": self.operator_server.describe() if self.operator_server else None,
            "counts": self.control.store.counts()._asdict(),
            "endpoints": [{"vm": name, "url": url} for name, url in self.lab_endpoints(_MAX_ENDPOINTS)],
        }

    def pending_events(self) -> int:
        """Return the number of events of all scopes that are scheduled or started, and so not over."""
        return self.control.store.counts().events

    def lab_endpoints(self, limit: int) -> list[tuple[str, str]]:
        """Return the first `limit` served VMs of a lab, as pairs of name and base URL for polls."""
        vms = filter(None, map(self.control.store.vm, self.control.placement.vm_keys()))
        endpoints = ((vm.name, self.publisher.lab_endpoint(vm)) for vm in vms)
        return list(islice(((name, url) for name, url in endpoints if url), limit))

    def sign_in_link(self) -> str:
        """Create a one-time link that signs the local user in to the portal; return its URL."""
        if self.operator_server is None:
            return ""
        identity = sign_in_link_identity(
            owner_principal(owner_name()), self.operator_server.sign_in, self.control.store
        )
        return self.operator_server.links.create(identity).url


def web_dependencies(service: Service, directory: DataDirectory) -> Dependencies:
    """Return what the web surfaces (API, Azure's API and portal) need of this service."""

    frontend = service.publisher.frontend

    async def doctor() -> list[Any]:
        found = await asyncio.to_thread(run_checks, service.settings, directory.database, is_running=True)
        workers = worker_checks(frontend.describe_workers())
        executor = service.control.executor
        unreachable = service.control.unreachable_hosts()
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
        rules_for=service.settings.serving.rules_for,
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
        hypervisor_text=service.settings.chosen_hypervisor.description,
        host_nodes=service.cluster.describe_nodes if service.cluster else None,
    )


def owner_name() -> str:
    """Return `local user NAME`: the owner of this service, as the history shows them."""
    return f"local user {getpass.getuser()}"
