"""What polls cost where they come from: 8,000 VMs, each of which asks once a second on a connection of its own.

Everything that goes on beside is part of it, as when each VM last asked is gathered and written down. nginx bears the
same connections and the same polls, with nothing to write down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.crowd import Crowd, play, poll
from bench.figure import Figure
from bench.ground import Ground
from bench.nginx import nginx
from bench.process import cpu_s
from bench.statistic import median, ratio
from bench.subject import TARGET, single_vms, subject
from tests.support.service_process import VmEndpoint

_VMS = 8_000
_TICKS = 100  # a second: VMs know nothing of each other


def measure(ground: Ground) -> tuple[Figure, ...]:
    vms = ground.sized(_VMS)
    names = [f"web-{number}" for number in range(vms)]
    with (
        subject(ground.directory / "fleet" / "ours", single_vms(vms, 100)) as service,
        nginx(ground.directory / "fleet" / "nginx", service.sample(names[0]), TARGET) as other,
    ):
        ours, theirs = play(_story(ground, (service.pid, service.seats(names)), (other.pid, [_seat(other.url)])))
    return (
        Figure(
            name="fleet-cpu",
            value=ratio(theirs, ours),
            note=f"{median(ours):.1f} and {median(theirs):.1f} µs, {vms:,} VMs",
            samples={"ours_us": tuple(ours), "nginx_us": tuple(theirs)},
        ),
    )


def _seat(url: str) -> VmEndpoint:
    address, _, port = url.split("/")[2].rpartition(":")
    return VmEndpoint(address, int(port))


async def _story(ground: Ground, *servers: tuple[int, Sequence[VmEndpoint]]) -> tuple[list[float], list[float]]:
    """What a poll cost each of the two, in microseconds of its CPU, by run."""
    costs: tuple[list[float], list[float]] = ([], [])
    vms, crowds = ground.sized(_VMS), (Crowd(), Crowd())
    for crowd, (_, seats) in zip(crowds, servers, strict=True):
        await crowd.connect(seats, vms)
        await _poll_for(crowd, 2.0)
    for _ in ground.track(f"{vms:,} VMs, ours and nginx in turn", range(ground.runs)):
        for crowd, (pid, _), seen in zip(crowds, servers, costs, strict=True):
            before = cpu_s(pid)
            polls = await _poll_for(crowd, ground.run_s)
            seen.append((cpu_s(pid) - before) / polls * 1e6)
    for crowd in crowds:
        crowd.close()
    return costs


async def _poll_for(crowd: Crowd, seconds: float) -> int:
    """Everybody once a second; how many polls that were."""
    loop, rounds = asyncio.get_running_loop(), []
    begin, share = loop.time(), len(crowd.guests) // _TICKS
    for tick in range(round(seconds * _TICKS)):
        first = tick % _TICKS * share
        rounds.append(crowd.ask(poll(), crowd.guests[first : first + share]))
        await asyncio.sleep(max(0.0, begin + (tick + 1) / _TICKS - loop.time()))
    return sum([len(await asked.all()) for asked in rounds])
