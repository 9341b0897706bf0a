"""Runs the agent as a process until a signal stops it, and serves its pages. SIGHUP reloads its file."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from forewarn.agent.config import AgentConfig, parse_listen_address
from forewarn.agent.daemon import AgentDaemon
from forewarn.agent.reporting import log_startup
from forewarn.base.http_server import HttpPages, HttpServer
from forewarn.errors import ForewarnError, Rejected, Unavailable

LOG = logging.getLogger("forewarn.agent")
_LISTEN_RETRY_S = 5.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


LoadConfig = Callable[[], AgentConfig]  # reads the configuration again; raises ForewarnError


async def run_until_signal(config: AgentConfig, load_again: LoadConfig) -> None:
    """Run the agent and serve its pages until SIGTERM or SIGINT; sets handlers for these signals."""
    if not config.listen:
        await _run_daemon(AgentDaemon(config), config, load_again, lambda steps: None)
        return
    _require_prometheus_client()
    from forewarn.agent.http_pages import build_pages
    from forewarn.agent.metrics import (
        AgentMetrics,
    )  # loads prometheus_client, which an agent without pages does not need

    metrics = AgentMetrics(config.steps)
    daemon = AgentDaemon(config, observer=metrics)
    async with _pages_served(build_pages(metrics, daemon.snapshot, lambda: _extra_state(daemon)), config.listen):
        await _run_daemon(daemon, config, load_again, metrics.add_steps)


async def run_once(config: AgentConfig) -> None:
    """Poll the endpoint until one answer, run the actions that are due, and return when they have ended."""
    task = asyncio.current_task()
    assert task is not None
    for number in (*_STOP_SIGNALS, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await AgentDaemon(config).run_once()


async def _run_daemon(
    daemon: AgentDaemon, config: AgentConfig, load_again: LoadConfig, add_steps: Callable[[Iterable[str]], None]
) -> None:
    def reload() -> None:
        try:
            new_config = load_again()
            daemon.reload(new_config)
        except ForewarnError as error:
            LOG.error("the new configuration is not used, the old one stays: %s", "; ".join(str(error).splitlines()))
            return
        add_steps(new_config.steps)
        LOG.info("the agent uses its new configuration; steps: %s", ", ".join(new_config.steps) or "none")

    log_startup(config)
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, daemon.stop)
    loop.add_signal_handler(signal.SIGHUP, daemon.stop if os.isatty(0) else reload)
    await daemon.run()


def _require_prometheus_client() -> None:
    if find_spec("prometheus_client") is None:
        raise Rejected(
            "the agent's pages need prometheus_client, which is not installed: pip install 'forewarn[agent]', "
            'or set listen = ""'
        )


def _extra_state(daemon: AgentDaemon) -> dict[str, Any]:
    report = daemon.report()
    return {"endpoint": report.endpoint, "problems": list(report.problems)}


@asynccontextmanager
async def _pages_served(pages: HttpPages, listen: str) -> AsyncIterator[None]:
    task = asyncio.create_task(_serve_pages_with_retries(pages, listen))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _serve_pages_with_retries(pages: HttpPages, listen: str) -> None:
    """Serves the pages; retries while the address is taken, because the agent must run anyway."""
    last_error = ""
    while True:
        try:
            async with serve_pages(pages, listen):
                last_error = ""
                await asyncio.Event().wait()
        except Unavailable as error:
            if str(error) != last_error:
                LOG.error("%s", error)
            last_error = str(error)
        await asyncio.sleep(_LISTEN_RETRY_S)


@asynccontextmanager
async def serve_pages(pages: HttpPages, listen: str) -> AsyncIterator[int]:
    """Context manager: serve the pages by GET and HEAD at `listen` (host:port), and yield the port."""
    host, port = parse_listen_address(listen)
    server = HttpServer(pages, own_names=("localhost", host.lower(), socket.gethostname().lower()))
    try:
        bound = await server.start(host=host, port=port)
    except OSError as error:
        why = error.strerror or error
        raise Unavailable(
            f"the agent cannot listen on {listen} ({why}): free the address, or set another with listen"
        ) from error
    try:
        yield bound
    finally:
        await server.close()
