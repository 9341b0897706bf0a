"""10,000 long polls on one document: from the call that changes it until the last of them is answered.

The time counts from when the call is sent, so that planning and the commit are part of it. The service has two workers,
and shares two cores with its guests. Beside it, the same of one process on a core of its own: what an answer costs it
and its guest there says which of the two the others wait for.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from bench.crowd import Crowd, play, poll
from bench.figure import Figure
from bench.ground import Ground
from bench.process import CLIENT_CORE, SERVER_CORE, cpu_s, wait_until_quiet
from bench.statistic import median, percentile
from bench.subject import Subject, one_scope, subject
from tests.support.service_process import eventually

_GUESTS = 10_000
_VMS = 20  # a VM may have 1,000 connections
_CHANGES = 20
_WAIT_S = 300


@dataclass(frozen=True, slots=True)
class Seen:
    """By change."""

    rounds: list[list[float]] = field(default_factory=list)  # milliseconds until each guest was answered
    busy_us: list[float] = field(default_factory=list)  # of the service's CPU, for one
    theirs_us: list[float] = field(default_factory=list)  # of the guest's

    @property
    def lasts(self) -> list[float]:
        return [times[-1] for times in self.rounds]


def measure(ground: Ground) -> tuple[Figure, ...]:
    guests = ground.sized(_GUESTS)
    with subject(ground.directory / "shared", one_scope(_VMS), ("--workers", "2"), core=None) as service:
        shared = play(_story(ground, service, guests, "two workers"), core=None)
    with subject(ground.directory / "alone", one_scope(_VMS), core=SERVER_CORE) as service:
        alone = play(_story(ground, service, guests, "one process"), core=CLIENT_CORE)
    thousands = tuple(median([times[n - 1] for times in shared.rounds]) for n in range(1000, guests + 1, 1000))
    return (
        Figure(
            name="long-poll-last",
            value=percentile(shared.lasts, 0.99),
            note=f"{guests:,} guests, {len(shared.rounds)} changes, median {median(shared.lasts):.0f} ms; two workers",
            samples={"last_ms": tuple(shared.lasts), "thousands_ms": thousands},
        ),
        Figure(name="long-poll-thousand", value=median(shared.lasts) / guests * 1000),
        Figure(
            name="long-poll-alone",
            value=percentile(alone.lasts, 0.99),
            note=f"median {median(alone.lasts):.0f} ms; {median(alone.busy_us):.0f} µs of its CPU for each, "
            f"{median(alone.theirs_us):.0f} µs of the guests'",
            samples={
                "last_ms": tuple(alone.lasts),
                "cpu_us": tuple(alone.busy_us),
                "guests_cpu_us": tuple(alone.theirs_us),
            },
        ),
    )


async def _story(ground: Ground, service: Subject, guests: int, who: str) -> Seen:
    crowd, seen, pending = Crowd(), Seen(), ""
    await crowd.connect(service.seats([f"web-{n}" for n in range(_VMS)]), guests)
    for _ in ground.track(f"{guests:,} long polls, {who}, changes", range(max(2, ground.sized(_CHANGES)))):
        await crowd.poll()
        waiting = crowd.ask(poll(crowd.etag, _WAIT_S))
        await asyncio.to_thread(_settle, service, guests)
        waiting.must_wait()
        begin, before, ours = time.perf_counter(), cpu_s(service.pid), time.process_time()
        change = asyncio.to_thread(_change, service, pending)
        pending, _ = await asyncio.gather(change, waiting.all())
        seen.rounds.append([(at - begin) * 1e3 for at in waiting.times])
        seen.theirs_us.append((time.process_time() - ours) / guests * 1e6)
        seen.busy_us.append((cpu_s(service.pid) - before) / guests * 1e6)
        waiting.must_be_news(crowd.etag)
    crowd.close()
    return seen


def _settle(service: Subject, guests: int) -> None:
    """Nothing is left to do, and all are held, as workers tell once a second."""
    wait_until_quiet(service.pid)
    eventually(lambda: service.series("forewarn_long_polls_waiting") == guests)


def _change(service: Subject, pending: str) -> str:
    """Schedule an event, or take the last one back; the id of the one that is pending now."""
    if pending:
        service.withdraw(pending)
        return ""
    return service.schedule("web-0")[0]
