"""10,000 long polls on one document: from the call that changes it to the response of the last one.

The time starts when the call is sent, so it includes planning and the commit. The service has two workers and shares
two cores with its clients. A second measurement has one process on a core of its own: the CPU time of a response on
either side says whether the server or the clients are the bottleneck.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from bench.clients import ClientPool, poll_request, run_clients
from bench.figure import Figure
from bench.process import CLIENT_CORE, SERVER_CORE, cpu_s, wait_until_idle
from bench.run_context import RunContext
from bench.sample_statistics import median, percentile
from bench.service import BenchService, one_scope, running_service
from tests.support.service_process import eventually

_CLIENTS = 10_000
_VMS = 20  # a VM may have 1,000 connections
_CHANGES = 20
_WAIT_S = 300


@dataclass(frozen=True, slots=True)
class LongPollSamples:
    """The samples of all changes."""

    rounds: list[list[float]] = field(default_factory=list)  # milliseconds until each client got its response
    busy_us: list[float] = field(default_factory=list)  # CPU of the service per response
    theirs_us: list[float] = field(default_factory=list)  # CPU of the clients per response

    @property
    def lasts(self) -> list[float]:
        """Milliseconds until the last response, by change."""
        return [times[-1] for times in self.rounds]


def measure(context: RunContext) -> tuple[Figure, ...]:
    clients = context.scaled(_CLIENTS)
    with running_service(context.directory / "shared", one_scope(_VMS), ("--workers", "2"), core=None) as service:
        shared = run_clients(_measure_clients(context, service, clients, "two workers"), core=None)
    with running_service(context.directory / "alone", one_scope(_VMS), core=SERVER_CORE) as service:
        alone = run_clients(_measure_clients(context, service, clients, "one process"), core=CLIENT_CORE)
    thousands = tuple(median([times[n - 1] for times in shared.rounds]) for n in range(1000, clients + 1, 1000))
    return (
        Figure(
            name="long-poll-last",
            value=percentile(shared.lasts, 0.99),
            note=f"{clients:,} clients, {len(shared.rounds)} changes, median {median(shared.lasts):.0f} ms",
            samples={"last_ms": tuple(shared.lasts), "thousands_ms": thousands},
        ),
        Figure(name="long-poll-thousand", value=median(shared.lasts) / clients * 1000),
        Figure(
            name="long-poll-alone",
            value=percentile(alone.lasts, 0.99),
            note=f"median {median(alone.lasts):.0f} ms; {median(alone.busy_us):.0f} µs of CPU per response, "
            f"{median(alone.theirs_us):.0f} µs of the clients'",
            samples={
                "last_ms": tuple(alone.lasts),
                "cpu_us": tuple(alone.busy_us),
                "guests_cpu_us": tuple(alone.theirs_us),
            },
        ),
    )


async def _measure_clients(context: RunContext, service: BenchService, clients: int, setup: str) -> LongPollSamples:
    pool, samples, pending = ClientPool(), LongPollSamples(), ""
    await pool.connect(service.endpoints([f"web-{n}" for n in range(_VMS)]), clients)
    for _ in context.track(f"{clients:,} long polls, {setup}, changes", range(max(2, context.scaled(_CHANGES)))):
        await pool.poll()
        waiting = pool.send_all(poll_request(pool.etag, _WAIT_S))
        await asyncio.to_thread(_wait_until_held, service, clients)
        waiting.check_none_answered()
        begin, before, ours = time.perf_counter(), cpu_s(service.pid), time.process_time()
        change = asyncio.to_thread(_change, service, pending)
        pending, _ = await asyncio.gather(change, waiting.wait())
        samples.rounds.append([(at - begin) * 1e3 for at in waiting.times])
        samples.theirs_us.append((time.process_time() - ours) / clients * 1e6)
        samples.busy_us.append((cpu_s(service.pid) - before) / clients * 1e6)
        waiting.check_changed(pool.etag)
    pool.close()
    return samples


def _wait_until_held(service: BenchService, clients: int) -> None:
    """Wait until the service is idle and all long polls are held, which workers report once a second."""
    wait_until_idle(service.pid)
    eventually(lambda: service.metric("forewarn_long_polls_waiting") == clients)


def _change(service: BenchService, pending: str) -> str:
    """Schedule an event, or withdraw the pending one; returns the id of the pending event or ""."""
    if pending:
        service.withdraw(pending)
        return ""
    return service.schedule("web-0")[0]
