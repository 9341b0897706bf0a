"""Scheduling one event must not cost more because the fleet is large: 100,000 VMs against 10."""

from __future__ import annotations

import time

from bench.figure import Figure
from bench.ground import Ground
from bench.start import large_fleet
from bench.statistic import median
from bench.subject import SMALL, Subject, subject

_TIMES = 100


def measure(ground: Ground) -> tuple[Figure, ...]:
    large, small = [], []
    fleet, vms = large_fleet(ground)
    with (
        subject(ground.directory / "schedule-large", fleet) as many,
        subject(ground.directory / "schedule-small", SMALL) as few,
    ):
        many.must_serve(vms)
        for service in (many, few):
            _must_be_told(service)
        for _ in ground.track("scheduling, with many VMs and with 10 in turn", range(ground.sized(_TIMES))):
            large.append(_schedule(many))
            small.append(_schedule(few))
    return (
        Figure(
            name="schedule-growth",
            value=median(large) / median(small),
            note=f"{median(large):.1f} ms and {median(small):.1f} ms, from call to answer",
            samples={"large_ms": tuple(large), "small_ms": tuple(small)},
        ),
    )


def _must_be_told(service: Subject) -> None:
    """AssertionError if the VM is not given what was scheduled by the time that the call is answered."""
    event_id = service.schedule("web-0")[0]
    given = service.sample("web-0").json["Events"]
    assert [event["EventId"] for event in given] == [event_id], f"of event {event_id} the VM is given {given}"
    service.withdraw(event_id)


def _schedule(service: Subject) -> float:
    """How long that took, in milliseconds; it is taken back afterwards."""
    begin = time.perf_counter()
    event_id = service.schedule("web-0")[0]
    took = time.perf_counter() - begin
    service.withdraw(event_id)
    return took * 1e3
