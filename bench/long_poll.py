"""10,000 long polls on one document: from the call that changes it until the last of them is answered.

The time counts from when the call is sent, so that planning and the commit are part of it. What one answer costs the
service and its guest, each on a core of its own, says which of the two the others wait for.
"""

from __future__ import annotations

import asyncio
import time

from bench.crowd import Crowd, play, poll
from bench.figure import Figure
from bench.ground import Ground
from bench.process import cpu_s, wait_until_quiet
from bench.statistic import median, percentile
from bench.subject import Subject, one_scope, subject

_GUESTS = 10_000
_VMS = 20  # a VM may have 1,000 connections
_CHANGES = 20
_WAIT_S = 300


def measure(ground: Ground) -> tuple[Figure, ...]:
    guests = ground.sized(_GUESTS)
    with subject(ground.directory / "long-poll", one_scope(_VMS)) as service:
        rounds, busy_us, theirs_us = play(_story(ground, service, guests))
    lasts = [times[-1] for times in rounds]
    thousands = tuple(median([times[n - 1] for times in rounds]) for n in range(1000, guests + 1, 1000))
    return (
        Figure(
            name="long-poll-last",
            value=percentile(lasts, 0.99),
            note=f"{guests:,} guests, {len(rounds)} changes, median {median(lasts):.0f} ms; planning included",
            samples={"last_ms": tuple(lasts), "thousands_ms": thousands},
        ),
        Figure(
            name="long-poll-thousand",
            value=median(lasts) / guests * 1000,
            note=f"{median(busy_us):.0f} µs of the service's CPU for each, {median(theirs_us):.0f} µs of the guests'",
            samples={"cpu_us": tuple(busy_us), "guests_cpu_us": tuple(theirs_us)},
        ),
    )


async def _story(ground: Ground, service: Subject, guests: int) -> tuple[list[list[float]], list[float], list[float]]:
    """When each guest was answered, in milliseconds; what one cost the service and us, in microseconds; by change."""
    crowd, rounds, busy_us, theirs_us, pending = Crowd(), [], [], [], ""
    await crowd.connect(service.seats([f"web-{n}" for n in range(_VMS)]), guests)
    for _ in ground.track(f"{guests:,} long polls, changes", range(max(2, ground.sized(_CHANGES)))):
        await crowd.poll()
        waiting = crowd.ask(poll(crowd.etag, _WAIT_S))
        await asyncio.to_thread(_settle, service, guests)
        waiting.must_wait()
        begin, before, ours = time.perf_counter(), cpu_s(service.pid), time.process_time()
        change = asyncio.to_thread(_change, service, pending)
        pending, _ = await asyncio.gather(change, waiting.all())
        rounds.append([(at - begin) * 1e3 for at in waiting.times])
        theirs_us.append((time.process_time() - ours) / guests * 1e6)
        busy_us.append((cpu_s(service.pid) - before) / guests * 1e6)
        waiting.must_be_news(crowd.etag)
    crowd.close()
    return rounds, busy_us, theirs_us


def _settle(service: Subject, guests: int) -> None:
    wait_until_quiet(service.pid)
    service.must_hold(guests)


def _change(service: Subject, pending: str) -> str:
    """Schedule an event, or take the last one back; the id of the one that is pending now."""
    if pending:
        service.withdraw(pending)
        return ""
    return service.schedule("web-0")[0]
