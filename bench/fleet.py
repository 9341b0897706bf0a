"""CPU per poll of a whole fleet: 8,000 VMs that each poll once a second on a connection of their own.

All work of the service is part of it, such as storing when each VM has polled last. nginx has the same connections and
polls, and nothing to store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.clients import ClientPool, poll_request, run_clients
from bench.figure import Figure
from bench.nginx import nginx
from bench.process import cpu_s
from bench.run_context import RunContext
from bench.sample_statistics import median, ratio
from bench.service import TARGET, running_service, single_vms
from tests.support.service_process import VmEndpoint

_VMS = 8_000
_TICKS = 100  # a second, over which the polls are distributed


def measure(context: RunContext) -> tuple[Figure, ...]:
    vms = context.scaled(_VMS)
    names = [f"web-{number}" for number in range(vms)]
    with (
        running_service(context.directory / "fleet" / "ours", single_vms(vms, 100)) as service,
        nginx(context.directory / "fleet" / "nginx", service.sample(names[0]), TARGET) as other,
    ):
        ours, theirs = run_clients(
            _measure_clients(context, (service.pid, service.endpoints(names)), (other.pid, [_endpoint(other.url)]))
        )
    return (
        Figure(
            name="fleet-cpu",
            value=ratio(theirs, ours),
            note=f"{median(ours):.1f} and {median(theirs):.1f} µs, {vms:,} VMs",
            samples={"ours_us": tuple(ours), "nginx_us": tuple(theirs)},
        ),
    )


def _endpoint(url: str) -> VmEndpoint:
    address, _, port = url.split("/")[2].rpartition(":")
    return VmEndpoint(address, int(port))


async def _measure_clients(
    context: RunContext, *servers: tuple[int, Sequence[VmEndpoint]]
) -> tuple[list[float], list[float]]:
    """Return the CPU microseconds per poll of each server, by run."""
    costs: tuple[list[float], list[float]] = ([], [])
    vms, pools = context.scaled(_VMS), (ClientPool(), ClientPool())
    for pool, (_, endpoints) in zip(pools, servers, strict=True):
        await pool.connect(endpoints, vms)
        await _poll_for(pool, 2.0)
    for _ in context.track(f"{vms:,} VMs, ours and nginx in turn", range(context.runs)):
        for pool, (pid, _), samples in zip(pools, servers, costs, strict=True):
            before = cpu_s(pid)
            polls = await _poll_for(pool, context.run_s)
            samples.append((cpu_s(pid) - before) / polls * 1e6)
    for pool in pools:
        pool.close()
    return costs


async def _poll_for(pool: ClientPool, seconds: float) -> int:
    """Poll once a second on every connection; returns the number of polls."""
    loop, batches = asyncio.get_running_loop(), []
    begin, share = loop.time(), len(pool.clients) // _TICKS
    for tick in range(round(seconds * _TICKS)):
        first = tick % _TICKS * share
        batches.append(pool.send_all(poll_request(), pool.clients[first : first + share]))
        await asyncio.sleep(max(0.0, begin + (tick + 1) / _TICKS - loop.time()))
    return sum([len(await batch.wait()) for batch in batches])
