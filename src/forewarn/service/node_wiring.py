"""Builds one control node of a cluster from settings, and the service that it runs while it is active.

The API's port and the unix socket are served from start to end; only the app behind them changes with the role.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forewarn.auth.certificates import ca_certificate_path
from forewarn.auth.tokens import ForwardingTokens, SigningKey
from forewarn.base.clock import read_real_time, real_now
from forewarn.base.http_server import HttpServer, metrics_pages
from forewarn.base.times import RealTime
from forewarn.cluster.bus import Bus
from forewarn.cluster.forwarding import ForwardedCallMiddleware, ForwardingApp, NodeApp
from forewarn.cluster.messages import RecordPosition
from forewarn.cluster.metrics import ControlNodeMetrics
from forewarn.cluster.record import SharedRecord
from forewarn.cluster.standby import Standby
from forewarn.control.control_plane import ControlPlane
from forewarn.errors import Rejected
from forewarn.service.api_port import ApiPort, bind_api_port
from forewarn.service.cluster_secrets import check_fingerprint, load_cluster_secrets, secrets_fingerprint
from forewarn.service.control_node import ControlNode, NodeTiming, end_process
from forewarn.service.data_directory import DataDirectory, SecretFiles
from forewarn.service.doctor import cluster_checks
from forewarn.service.service import Service, owner_name, web_dependencies
from forewarn.service.settings import Settings
from forewarn.service.web_server import build_web_app, make_operator_server
from forewarn.service.wiring import (
    ServiceStorage,
    bind_metrics,
    connect_bus,
    new_cluster_control,
    open_control,
    start_service,
    without_garbage_collection,
)
from forewarn.web.nodes import nodes_view
from forewarn.web.routing import API_PREFIX
from forewarn.web.server import ServingState, serve_unix

DRAIN_S = 1.0  # of real time, for operators' calls when the node gives control up

# A commit takes several answers of PostgreSQL, and its thread waits this long after each if the loop is busy. With
# Python's five milliseconds, approvals that come meanwhile delay the commit of those before them.
_SWITCH_INTERVAL_S = 0.0005

OpenRecord = Callable[[str], SharedRecord]  # connects to the record at a URL; blocks


def open_postgres_record(url: str) -> SharedRecord:
    """Connect to the record that control nodes share, in PostgreSQL; blocks. The caller closes it."""
    try:
        from forewarn.cluster.postgres_record import open_record
    except ModuleNotFoundError as error:
        raise Rejected(
            "setting 'store' needs psycopg, which is not installed: pip install 'forewarn[server,cluster]'"
        ) from error
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return open_record(url)


class _LeaseTerm:
    """The term of a control node's lease, for the host nodes. Make it while the node holds the lease."""

    def __init__(self, node: ControlNode) -> None:
        assert node.held is not None
        self.number = node.term
        self._node, self._lease = node, node.held.lease

    @property
    def is_held(self) -> bool:
        return self._node.term == self.number and self._node.may_act()

    @property
    def record(self) -> RecordPosition:
        """The last commit to the record, as far as this node knows."""
        position = self._node.record_position
        return RecordPosition(self._lease.record_id, position.number, position.hash)

    async def has_group(self, by: str, shown: RecordPosition) -> bool:
        return await self._node.has_group(by, shown.number, shown.hash)


class ControlNodeProcess:
    """A control node with its sockets and ASGI apps, which stay the same in every role."""

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        port: ApiPort,
        record: SharedRecord,
        *,
        end: Callable[[str], None],
        timing: NodeTiming,
        real_time: Callable[[], RealTime],
        metrics_sockets: tuple[socket.socket, ...],
        secrets: SecretFiles,
        bus: Bus | None,
    ) -> None:
        self.settings, self.port = settings, port
        self._bus = bus
        self.service: Service | None = None
        self._directory, self._secrets = directory, secrets
        self._worker_metrics_sockets = metrics_sockets[1:]
        self._fingerprint = secrets_fingerprint(secrets)
        self._tokens = ForwardingTokens(SigningKey.load_or_create(secrets.token_key), read_real_time)
        self.node = ControlNode(
            settings.name,
            port.advertised_url,
            record,
            Standby(directory.database, record, name=settings.name, fingerprint=self._fingerprint, real_time=real_time),
            self._run_service,
            end=end,
            timing=timing,
            real_time=real_time,
        )
        self.metrics = ControlNodeMetrics(self.node.figures)
        self._forwarding = [self._forwarding_app(), self._forwarding_app(owner=owner_name())]
        api, local = self._forwarding

        def has_target() -> bool:
            return bool(self.node.target)

        self.api_app = NodeApp(api, has_target=has_target, may_refuse=self.node.may_act)
        # The local owner can always see the nodes, also while none is active.
        own_paths = {f"GET {API_PREFIX}/nodes": self._list_nodes}
        self.local_app = NodeApp(local, has_target=has_target, answers_itself=own_paths, may_refuse=self.node.may_act)

    async def render_metrics(self) -> bytes:
        """Return the metrics of this process as Prometheus text, for its plain HTTP port."""
        if self.service is None:
            return self.metrics.render_process()
        return await self.service.metrics.render_own() + self.metrics.render()

    async def close(self) -> None:
        """Close the copy and the connections to other nodes; call it after the node has ended."""
        await self.node.close()
        for app in self._forwarding:
            await app.close()

    def _forwarding_app(self, owner: str = "") -> ForwardingApp:
        trust = ssl.create_default_context(cafile=ca_certificate_path(self._secrets.authority))
        if self.settings.api_certificate:  # which any authority may have issued
            trust.load_default_certs()
        return ForwardingApp(
            target=lambda: self.node.target, node=self.settings.name, tokens=self._tokens, tls=trust, owner=owner
        )

    @asynccontextmanager
    async def _run_service(self, storage: ServiceStorage) -> AsyncIterator[ControlPlane]:
        """Run the service on an open store, and serve operators with it, for the time of the block."""
        async with AsyncExitStack() as stack:
            with without_garbage_collection():
                service = await self._start_service(stack, storage)
            yield service.control

    async def _start_service(self, stack: AsyncExitStack, storage: ServiceStorage) -> Service:
        settings, directory = self.settings, self._directory
        await check_fingerprint(storage.store, self._fingerprint)
        if self._bus is not None:
            cluster = new_cluster_control(self._bus, settings, settings.name, _LeaseTerm(self.node))
            storage = replace(storage, cluster=cluster)
        control, supervisors = await open_control(stack, settings, directory, storage)
        now = control.clock.now()
        operators = await make_operator_server(settings, self.port, self._secrets, storage.store, now)
        service, names = await start_service(
            stack,
            settings,
            directory,
            control,
            supervisors,
            operators,
            self._worker_metrics_sockets,
            storage.cluster,
        )
        dependencies = web_dependencies(service, directory)
        own_checks = dependencies.run_health_checks

        async def run_health_checks() -> list[Any]:
            return [*await own_checks(), *await cluster_checks(self.node, settings.store, self._bus)]

        dependencies = replace(
            dependencies,
            control_node=self.node,
            render_metrics=self._render_all,
            run_health_checks=run_health_checks,
        )
        accept = operators.sign_in.issuer.accept_audiences
        stack.callback(self.node.watch_nodes(lambda nodes: accept(node.url for node in nodes)))
        api = operators.build_app(dependencies, names)
        self.service = service
        self.api_app.activate(ForwardedCallMiddleware(api, tokens=self._tokens))
        self.local_app.activate(build_web_app(dependencies, directory=names))

        async def deactivate() -> None:
            dependencies.shutting_down.set()
            self.service = None
            await asyncio.gather(self.api_app.deactivate(DRAIN_S), self.local_app.deactivate(DRAIN_S))

        stack.push_async_callback(deactivate)
        return service

    async def _list_nodes(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `GET /nodes`, in any role."""
        content = msgspec.json.encode(nodes_view(self.node))
        await Response(content, media_type="application/json")(scope, receive, send)

    async def _render_all(self) -> bytes:
        assert self.service is not None
        return await self.service.metrics.render_all() + self.metrics.render()


@asynccontextmanager
async def running_control_node(
    settings: Settings,
    *,
    open_record: OpenRecord = open_postgres_record,
    end: Callable[[str], None] = end_process,
    timing: NodeTiming = NodeTiming(),
    real_time: Callable[[], RealTime] = real_now,
) -> AsyncIterator[ControlNodeProcess]:
    """Start a control node, yield it once it is served, and stop it when the block is left.

    An active node gives control up first. An error that ends the node cancels the block, and is raised in its place.
    `end` is called, on any thread, when the process must end at once.
    """
    _ = settings.chosen_hypervisor  # refused before anything is opened
    async with AsyncExitStack() as stack:
        directory = DataDirectory.acquire(settings.directory)
        stack.callback(directory.close)
        secrets = load_cluster_secrets(settings)
        record = await asyncio.to_thread(open_record, settings.store)
        stack.callback(record.close)
        port = bind_api_port(settings, directory, secrets)
        assert port is not None, "a control node has an API port"
        stack.callback(port.sock.close)
        metrics_sockets = bind_metrics(stack, settings)
        process = ControlNodeProcess(
            settings,
            directory,
            port,
            record,
            end=end,
            timing=timing,
            real_time=real_time,
            metrics_sockets=metrics_sockets,
            secrets=secrets,
            bus=await connect_bus(stack, settings, settings.name) if settings.bus else None,
        )
        stack.push_async_callback(process.close)
        await process.node.join()
        await stack.enter_async_context(serve_unix(process.local_app, directory.socket, ServingState()))
        await stack.enter_async_context(port.serve(process.api_app, ServingState()))
        if metrics_sockets:
            metrics_server = HttpServer(metrics_pages(process.render_metrics))
            await metrics_server.start(sock=metrics_sockets[0])
            stack.push_async_callback(metrics_server.close)
        async with _running(process.node):
            yield process


@asynccontextmanager
async def _running(node: ControlNode) -> AsyncIterator[None]:
    running = asyncio.create_task(node.run())
    body = asyncio.current_task()
    assert body is not None
    failed = False

    def on_end(task: asyncio.Task[None]) -> None:
        nonlocal failed
        if not task.cancelled() and task.exception() is not None:
            failed = True
            body.cancel()  # the error of the node is raised instead

    running.add_done_callback(on_end)
    try:
        yield
    except asyncio.CancelledError:
        if not failed:
            raise
        body.uncancel()
    finally:
        node.stop()
        await asyncio.wait({running})
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error
