"""How long a new control node needs until it can take over, in a fleet of 100,000 VMs.

It is a process with no copy of the record, so it builds one from PostgreSQL, which has a synchronous standby. This
process wrote the fleet to the record and holds the lease meanwhile. All of them run on this machine.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.figure import Figure, absent
from bench.process import cpu_s
from bench.run_context import RunContext
from bench.sample_statistics import median
from forewarn.base.clock import SystemClock
from forewarn.cluster.postgres_record import PostgresRecord, open_record
from forewarn.cluster.record import LeaseRow
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.fleet import FleetChange
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor
from tests.cluster.control_node_processes import ProcessCluster
from tests.support.postgres_pair import ServerPair
from tests.support.postgres_server import is_installed
from tests.support.replicated_store import open_replicated, take
from tests.support.world import a_host, a_vm

FIGURES = ("standby-ready",)
_VMS = 100_000
_VMS_PER_HOST = 40
_VMS_PER_CHANGE = 5_000
_READY_S = 120.0
_STARTS = 3
_RENEW_S = 0.5


def measure(context: RunContext) -> tuple[Figure, ...]:
    if not is_installed():
        return tuple(absent(name, "PostgreSQL is not installed") for name in FIGURES)
    directory = context.directory / "standby"
    directory.mkdir()
    vms = context.scaled(_VMS)
    servers = ServerPair(fsync=True)
    took_s: list[float] = []
    busy_s: list[float] = []
    try:
        with closing(open_record(servers.url)) as record, _held_lease(record) as lease:
            context.on_progress(f"a record with {vms:,} VMs", 0, 1)
            asyncio.run(_write_fleet(directory / "active.db", record, lease, vms))
            number = record.read_lease().number
            with ProcessCluster(directory, servers.both_url, fleet="") as cluster:
                starts = range(1 if context.is_quick else _STARTS)
                for start in context.track("a standby starts from nothing", starts):
                    begin = time.perf_counter()
                    standby = cluster.node(f"s{start}")
                    standby.launch()
                    _wait_until_ready(record, f"s{start}", number)
                    took_s.append(time.perf_counter() - begin)
                    busy_s.append(cpu_s(standby.pid))
                    standby.kill()
                    shutil.rmtree(standby.data)
    finally:
        servers.remove()
    return (
        Figure(
            name="standby-ready",
            value=median(took_s),
            note=f"{vms:,} VMs; {median(busy_s):.1f} s of CPU of the new node",
            samples={"s": tuple(took_s), "cpu_s": tuple(busy_s)},
        ),
    )


@contextmanager
def _held_lease(record: PostgresRecord) -> Iterator[LeaseRow]:
    """Take the lease, and renew it until the block ends."""
    lease, is_over = take(record), threading.Event()

    def renew() -> None:
        with closing(record.connect()) as own:
            while not is_over.wait(_RENEW_S):
                own.renew_lease(lease.term)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield lease
    finally:
        is_over.set()
        thread.join()


async def _write_fleet(path: Path, record: PostgresRecord, lease: LeaseRow, vms: int) -> None:
    """Add this many VMs to the record, each a scope of its own, as an active node does."""
    store = open_replicated(path, record, lease)
    hypervisor = SimulatedHypervisor(EffectLedger(None))
    control = ControlPlane(
        store=store,
        clock=SystemClock(),
        hypervisor=hypervisor,
        inputs=ControlInputs(new_id=lambda: "unused", polls=store.last_polls),
    )
    hosts = tuple(a_host(f"h{number}") for number in range(-(-vms // _VMS_PER_HOST)))
    await control.fleet.apply_change(FleetChange(hosts=hosts, vms=(), text="bench"), who="bench")
    for first in range(0, vms, _VMS_PER_CHANGE):
        some = range(first, min(vms, first + _VMS_PER_CHANGE))
        added = tuple(a_vm(f"vm-{number}", host=f"h{number // _VMS_PER_HOST}") for number in some)
        await control.fleet.apply_change(FleetChange(hosts=(), vms=added, text="bench"), who="bench")
    await control.close()
    await hypervisor.close()
    await store.close()


def _wait_until_ready(record: PostgresRecord, name: str, number: int) -> None:
    """Return when this node has described itself as a standby that has the whole record and could take over."""
    deadline = time.monotonic() + _READY_S
    while True:
        for node in record.nodes():
            is_ready = node.role == "standby" and not node.status and node.number >= number
            if node.name == name and is_ready:
                return
        assert time.monotonic() < deadline, f"{name} is not ready after {_READY_S:g} s: {record.nodes()}"
        time.sleep(0.05)
