"""`python -m bench.node_tasks`: many host nodes in one process, each with a connection to NATS and all its messages.

They have no sockets for VMs. Each also takes plain messages on its connection, which show what NATS alone needs. The
first line of standard input says that all nodes have joined. When the input ends, the process writes when it showed
which document and got which plain message, by the clock that all processes of this machine share, and ends.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.process import raise_file_limit
from forewarn import __version__
from forewarn.cluster.bus import BusMessage, Subjects
from forewarn.cluster.host_node import HostNode, HostNodeConfig
from forewarn.cluster.messages import HostFact, HostScope, NodeInfo
from forewarn.cluster.nats_bus import NatsBus, NatsSettings
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor
from forewarn.metadata.workers.frontend import FrontendConfig
from forewarn.metadata.workers.worker import event_loop_factory

PLAIN_DIGITS = 12  # at the beginning of a plain message: its number
_GC_THRESHOLD = 20_000  # as in a service


def plain_subject(host: str) -> str:
    """The subject of plain messages to the node of this host."""
    return f"bench.plain.{host}"


class ShownDocument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A host shows the document of a scope from this time on."""

    host: str
    scope_id: str
    incarnation: int
    at: float


class TaskResult(msgspec.Struct, frozen=True):
    """What the nodes of a process noted."""

    shown: list[ShownDocument]
    plain: dict[int, float]  # number of a plain message → when the last of its receivers here got it


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


async def _run_node(url: str, host: str, result: TaskResult) -> None:
    subjects = Subjects()
    bus = await NatsBus.connect(NatsSettings(url=url), name=f"node of host {host}", inbox=subjects.inbox(host))
    hypervisor = SimulatedHypervisor(EffectLedger(None))
    info = NodeInfo(f"bench-{host}", 1, __version__)
    node = _TimedNode(
        bus, HostNodeConfig(host=host, info=info, frontend=FrontendConfig()), hypervisor=hypervisor, terms=_Terms()
    )
    node.shown = result.shown

    def on_plain(message: BusMessage) -> None:
        result.plain[int(message.payload[:PLAIN_DIGITS])] = time.monotonic()

    try:
        await bus.subscribe(plain_subject(host), on_plain)
        await node.run()
    finally:
        await bus.close()
        await hypervisor.close()


def collect_rarely() -> None:
    """Let garbage collections leave out what exists now, and be rare, as in a service that has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])


async def _run(url: str, hosts: list[str], output: Path) -> None:
    result = TaskResult([], {})
    tasks = [asyncio.create_task(_run_node(url, host, result)) for host in hosts]
    await asyncio.to_thread(sys.stdin.readline)
    collect_rarely()
    await asyncio.to_thread(sys.stdin.read)
    output.write_bytes(msgspec.json.encode(result))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    raise_file_limit()
    logging.disable(logging.WARNING)  # each node would say that NATS is away
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_run(sys.argv[1], sys.argv[3].split(","), Path(sys.argv[2])))
