"""`python -m bench.node_tasks`: many host nodes in one process, each with a connection to NATS and all its messages.

They have no sockets for VMs. When standard input ends, the process writes when it showed which document, by the clock
that all processes of this machine share, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.process import raise_file_limit
from forewarn import __version__
from forewarn.cluster.bus import Subjects
from forewarn.cluster.host_node import HostNode, HostNodeConfig
from forewarn.cluster.messages import HostFact, HostScope, NodeInfo
from forewarn.cluster.nats_bus import NatsBus, NatsSettings
from forewarn.hypervisor.ledger import EffectLedger
from forewarn.hypervisor.simulated import SimulatedHypervisor
from forewarn.workers.frontend import FrontendConfig
from forewarn.workers.worker import event_loop_factory


class ShownDocument(msgspec.Struct, frozen=True, array_like=True):
    """A host shows the document of a scope from this time on."""

    host: str
    scope_id: str
    incarnation: int
    at: float


class _Terms:
    """Terms in memory: nothing is ordered here."""

    def term_of(self, store_tag: str) -> int:
        return 0

    def store_term(self, store_tag: str, term: int) -> None:
        return None


class _TimedNode(HostNode):
    """A host node that notes when it shows documents."""

    shown: list[ShownDocument]

    def _show(self, changes: Sequence[HostFact]) -> None:
        super()._show(changes)
        now = time.monotonic()
        for fact in changes:
            if isinstance(fact, HostScope):
                document = fact.update.document
                self.shown.append(ShownDocument(self.config.host, fact.update.scope_id, document.incarnation, now))


async def _run_node(url: str, host: str, shown: list[ShownDocument]) -> None:
    subjects = Subjects()
    bus = await NatsBus.connect(NatsSettings(url=url), name=f"node of host {host}", inbox=subjects.inbox(host))
    hypervisor = SimulatedHypervisor(EffectLedger.open(None))
    info = NodeInfo(f"bench-{host}", 1, __version__)
    node = _TimedNode(
        bus, HostNodeConfig(host=host, info=info, frontend=FrontendConfig()), hypervisor=hypervisor, terms=_Terms()
    )
    node.shown = shown
    try:
        await node.run()
    finally:
        await bus.close()
        await hypervisor.close()


async def _run(url: str, hosts: list[str], output: Path) -> None:
    shown: list[ShownDocument] = []
    tasks = [asyncio.create_task(_run_node(url, host, shown)) for host in hosts]
    await asyncio.to_thread(sys.stdin.read)
    output.write_bytes(msgspec.json.encode(shown))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    raise_file_limit()
    logging.disable(logging.WARNING)  # each node would say that NATS is away
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_run(sys.argv[1], sys.argv[3].split(","), Path(sys.argv[2])))
