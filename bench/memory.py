"""What a connection costs in memory of the service: idle after a poll, and waiting in a long poll.

The kernel's share of a socket is not part of it; it is the same for every server.
"""

from __future__ import annotations

import asyncio

from bench.crowd import Crowd, play, poll
from bench.figure import Figure
from bench.ground import Ground
from bench.process import memory_bytes, wait_until_quiet
from bench.subject import Subject, one_scope, subject

_GUESTS = 5_000
_FIRST = 200  # so that what is loaded and made once is there before
_VMS = 20


def measure(ground: Ground) -> tuple[Figure, ...]:
    return tuple(_figure(ground, name, wait_s) for name, wait_s in (("idle-memory", 0), ("waiting-memory", 300)))


def _figure(ground: Ground, name: str, wait_s: int) -> Figure:
    guests = ground.sized(_GUESTS)
    with subject(ground.directory / name, one_scope(_VMS)) as service:
        before, after = play(_story(ground, service, guests, wait_s))
    return Figure(
        name=name,
        value=(after - before) / guests / 1024,
        note=f"over {guests:,} connections",
        samples={"before_bytes": (before,), "after_bytes": (after,)},
    )


async def _story(ground: Ground, service: Subject, guests: int, wait_s: int) -> tuple[int, int]:
    crowd, used = Crowd(), []
    seats = service.seats([f"web-{n}" for n in range(_VMS)])
    for count in ground.track("waiting long polls" if wait_s else "idle connections", (_FIRST, guests)):
        there = len(crowd.guests)
        await crowd.connect(seats, count)
        newcomers = crowd.guests[there:]
        await crowd.poll(newcomers)
        if wait_s:
            crowd.ask(poll(crowd.etag, wait_s), newcomers)
        await asyncio.to_thread(wait_until_quiet, service.pid)
        used.append(memory_bytes(service.pid))
    crowd.close()
    return used[0], used[1]
