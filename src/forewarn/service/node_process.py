"""Runs a host node as a process: its data directory, its hypervisor, the bus and signals.

SIGINT and SIGTERM stop it; SIGHUP replaces its workers, if it has any.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from forewarn import __version__
from forewarn.base.http_server import HttpServer, metrics_pages
from forewarn.cluster.bus import Bus, Subjects
from forewarn.cluster.host_node import HostNode, HostNodeConfig, RulesChanged
from forewarn.cluster.messages import NodeInfo
from forewarn.cluster.nats_bus import NatsBus
from forewarn.cluster.node_state import NodeState
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.interface import Hypervisor
from forewarn.machines.process.hypervisor import SupervisorRecords, SupervisorRegistry
from forewarn.metadata.limits import raise_open_file_limit
from forewarn.metadata.node_metrics import NodeMetrics
from forewarn.metadata.socket_passing import SOCKETS_FILE
from forewarn.metadata.workers.frontend import FrontendConfig
from forewarn.metadata.workers.worker import event_loop_factory
from forewarn.service.data_directory import DataDirectory
from forewarn.service.settings import Settings, SocketOwner
from forewarn.service.wiring import bind_metrics, open_hypervisor

log = logging.getLogger(__name__)
NODE_STATE_FILE = "node.json"
_RELOAD_TIMEOUT_S = 5.0
_GC_THRESHOLD = 20_000  # new objects before a garbage collection: what some hundred requests at once create


def run_host_node(settings: Settings, announce: Callable[[dict[str, Any]], None]) -> None:
    """Run a host node until a signal stops it; blocks. Calls `announce` when the node answers VMs.

    `announce` is called again if the node had to start anew because the service's rules changed. SIGHUP replaces its
    workers.
    """
    os.umask(0o077)
    raise_open_file_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_NodeProcess(settings, announce).run())


class _NodeProcess:
    def __init__(self, settings: Settings, announce: Callable[[dict[str, Any]], None]) -> None:
        self._settings, self._announce = settings, announce
        self._node: HostNode | None = None
        self._is_stopping = False

    async def run(self) -> None:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            async with AsyncExitStack() as stack:
                await self._run(stack)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise

    async def _run(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        directory = DataDirectory.acquire(settings.directory)
        stack.callback(directory.close)
        state = NodeState.load(directory.path / NODE_STATE_FILE)
        supervisors = SupervisorRegistry(SupervisorRecords(directory.vms))
        hypervisor = open_hypervisor(settings, directory, supervisors, lambda host: False)
        stack.push_async_callback(hypervisor.close)
        if isinstance(hypervisor, MachineHypervisor):
            watching = asyncio.create_task(hypervisor.watch_capacity())
            stack.push_async_callback(_end, watching)
        metrics_sockets = bind_metrics(stack, settings)
        subjects = Subjects(settings.bus_prefix)
        bus = await NatsBus.connect(
            settings.nats,
            name=f"node of host {settings.host}",
            inbox=subjects.inbox(settings.host),
            on_waiting=lambda text: log.warning("%s", text),
        )
        stack.push_async_callback(bus.close)
        config = _node_config(settings, state, subjects)
        if metrics_sockets:
            server = HttpServer(metrics_pages(NodeMetrics(lambda: self._node).render))
            await server.start(sock=metrics_sockets[0])
            stack.push_async_callback(server.close)
        while not self._is_stopping and await self._serve(bus, config, hypervisor, state, metrics_sockets[1:]):
            log.warning("the service has other rules than before: this node starts again with them")

    async def _serve(
        self,
        bus: Bus,
        config: HostNodeConfig,
        hypervisor: Hypervisor,
        state: NodeState,
        metrics_sockets: tuple[socket.socket, ...],
    ) -> bool:
        """Serve until the node is stopped, or must be started again, which returns True."""
        node = self._node = HostNode(
            bus,
            config,
            on_serving=self._on_serving,
            hypervisor=hypervisor,
            terms=state,
            metrics_sockets=metrics_sockets,
        )
        try:
            await node.run()
        except RulesChanged:
            return True
        return False

    def _on_serving(self) -> None:
        settings, node = self._settings, self._node
        assert node is not None
        # What exists now is not garbage, and searching it would delay answers.
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])
        self._announce(
            {
                "host": settings.host,
                "id": node.config.info.id,
                "pid": os.getpid(),
                "version": __version__,
                "data": settings.data,
                "bus": settings.bus,
                "hypervisor": settings.chosen_hypervisor,
                "vms": len(node.facts.vm_keys),
                "listeners": node.describe_listeners(),
            }
        )

    def _stop(self) -> None:
        self._is_stopping = True
        if self._node is not None:
            self._node.stop()
        elif self._task is not None:
            self._task.cancel()

    def _reload(self) -> None:
        if self._node is not None:
            self._node.reload_workers(_RELOAD_TIMEOUT_S)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _node_config(settings: Settings, state: NodeState, subjects: Subjects) -> HostNodeConfig:
    helper = settings.directory / SOCKETS_FILE if settings.sockets is SocketOwner.HELPER else None
    return HostNodeConfig(
        host=settings.host,
        info=NodeInfo(
            state.id,
            state.boot,
            __version__,
            machine=socket.gethostname(),
            pid=os.getpid(),
            hypervisor=settings.chosen_hypervisor,
        ),
        frontend=FrontendConfig(workers=settings.workers, listeners=settings.metadata_listeners, helper_socket=helper),
        subjects=subjects,
        stale_s=settings.stale_minutes * 60,
    )
