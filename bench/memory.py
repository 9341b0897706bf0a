"""Memory of the service per connection: idle after a poll, and waiting in a long poll.

The memory of the kernel is not included; it is the same for every server.
"""

from __future__ import annotations

import asyncio

from bench.clients import ClientPool, poll_request, run_clients
from bench.figure import Figure
from bench.process import memory_bytes, wait_until_idle
from bench.run_context import RunContext
from bench.service import BenchService, one_scope, running_service

_CLIENTS = 5_000
_FIRST = 200  # connections before the measurement, so that one-time costs are not included
_VMS = 20


def measure(context: RunContext) -> tuple[Figure, ...]:
    return tuple(_figure(context, name, wait_s) for name, wait_s in (("idle-memory", 0), ("waiting-memory", 300)))


def _figure(context: RunContext, name: str, wait_s: int) -> Figure:
    clients = context.scaled(_CLIENTS)
    with running_service(context.directory / name, one_scope(_VMS)) as service:
        before, after = run_clients(_measure_clients(context, service, clients, wait_s))
    assert after > before, f"{clients} connections used no memory: {before} bytes before, {after} after"
    return Figure(
        name=name,
        value=(after - before) / clients / 1024,
        note=f"over {clients:,} connections",
        samples={"before_bytes": (before,), "after_bytes": (after,)},
    )


def _used(service: BenchService, connections: int, wait_s: int) -> int:
    """Return the memory of the idle service with this many connections."""
    wait_until_idle(service.pid)
    service.check_connections(connections)
    service.check_held(connections if wait_s else 0)
    wait_until_idle(service.pid)
    return memory_bytes(service.pid)


async def _measure_clients(context: RunContext, service: BenchService, clients: int, wait_s: int) -> tuple[int, int]:
    pool, used = ClientPool(), []
    endpoints = service.endpoints([f"web-{n}" for n in range(_VMS)])
    for count in context.track("waiting long polls" if wait_s else "idle connections", (_FIRST, clients)):
        existing = len(pool.clients)
        await pool.connect(endpoints, count)
        added = pool.clients[existing:]
        await pool.poll(added)
        waiting = pool.send_all(poll_request(pool.etag, wait_s), added if wait_s else [])
        used.append(await asyncio.to_thread(_used, service, len(pool.clients), wait_s))
        waiting.check_none_answered()
    pool.close()
    return used[0], used[1]
