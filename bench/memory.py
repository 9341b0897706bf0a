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
    assert after > before, f"{guests} connections took no memory: {before} bytes before, {after} after"
    return Figure(
        name=name,
        value=(after - before) / guests / 1024,
        note=f"over {guests:,} connections",
        samples={"before_bytes": (before,), "after_bytes": (after,)},
    )


def _used(service: Subject, connections: int, wait_s: int) -> int:
    """Memory, when all are there and nothing is left to do."""
    wait_until_quiet(service.pid)
    service.must_have(connections)
    service.must_hold(connections if wait_s else 0)
    wait_until_quiet(service.pid)
    return memory_bytes(service.pid)


async def _story(ground: Ground, service: Subject, guests: int, wait_s: int) -> tuple[int, int]:
    crowd, used = Crowd(), []
    seats = service.seats([f"web-{n}" for n in range(_VMS)])
    for count in ground.track("waiting long polls" if wait_s else "idle connections", (_FIRST, guests)):
        there = len(crowd.guests)
        await crowd.connect(seats, count)
        newcomers = crowd.guests[there:]
        await crowd.poll(newcomers)
        waiting = crowd.ask(poll(crowd.etag, wait_s), newcomers if wait_s else [])
        used.append(await asyncio.to_thread(_used, service, len(crowd.guests), wait_s))
        waiting.must_wait()
    crowd.close()
    return used[0], used[1]
