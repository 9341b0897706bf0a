"""The agent as a process: it runs until a signal ends it, and shows its pages meanwhile."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from forewarn.agent.config import Config
from forewarn.agent.daemon import Daemon
from forewarn.agent.face import Pages, showing
from forewarn.agent.telling import tell_begun
from forewarn.errors import Rejected, Unavailable

LOG = logging.getLogger("forewarn.agent")
_AGAIN_S = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run(config: Config) -> None:
    """Until SIGTERM or SIGINT."""
    if not config.listen:
        await _until_told(Daemon(config), config)
        return
    _must_be_able_to_listen()
    from forewarn.agent.metrics import Metrics  # which loads much that an agent without pages can do without
    from forewarn.agent.page import pages_of

    metrics = Metrics(config.steps)
    daemon = Daemon(config, observer=metrics)
    async with _shown(pages_of(metrics, daemon.situation, lambda: _facts(daemon)), config.listen):
        await _until_told(daemon, config)


async def once(config: Config) -> None:
    """Look once, do what is due, and end; a signal ends it sooner, and what was under way is found begun."""
    task = asyncio.current_task()
    assert task is not None
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await Daemon(config).once()


async def _until_told(daemon: Daemon, config: Config) -> None:
    tell_begun(config)
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, daemon.stop)
    await daemon.run()


def _must_be_able_to_listen() -> None:
    if find_spec("prometheus_client") is None:
        raise Rejected(
            "the agent's pages need prometheus_client, which is not installed: pip install 'forewarn[agent]', "
            'or write listen = ""'
        )


def _facts(daemon: Daemon) -> dict[str, Any]:
    report = daemon.state()
    return {"endpoint": report.endpoint, "problems": list(report.problems)}


@asynccontextmanager
async def _shown(pages: Pages, listen: str) -> AsyncIterator[None]:
    task = asyncio.create_task(_show(pages, listen))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _show(pages: Pages, listen: str) -> None:
    """An address that is taken is no reason to miss maintenance: it is tried again."""
    told = ""
    while True:
        try:
            async with showing(pages, listen):
                told = ""
                await asyncio.Event().wait()
        except Unavailable as error:
            if str(error) != told:
                LOG.error("%s", error)
            told = str(error)
        await asyncio.sleep(_AGAIN_S)
