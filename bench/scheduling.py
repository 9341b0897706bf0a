"""The time to schedule one event with 100,000 VMs, compared with 10: it must not grow with the fleet."""

from __future__ import annotations

import time

from bench.figure import Figure
from bench.run_context import RunContext
from bench.sample_statistics import median
from bench.service import SMALL, BenchService, running_service
from bench.start import large_fleet

_TIMES = 100


def measure(context: RunContext) -> tuple[Figure, ...]:
    large, small = [], []
    fleet, vms = large_fleet(context)
    with (
        running_service(context.directory / "schedule-large", fleet) as many,
        running_service(context.directory / "schedule-small", SMALL) as few,
    ):
        many.check_vm_count(vms)
        for service in (many, few):
            _check_delivered(service)
        for _ in context.track("scheduling, with many VMs and with 10 in turn", range(context.scaled(_TIMES))):
            large.append(_schedule(many))
            small.append(_schedule(few))
    return (
        Figure(
            name="schedule-growth",
            value=median(large) / median(small),
            note=f"{median(large):.1f} ms and {median(small):.1f} ms, from call to response",
            samples={"large_ms": tuple(large), "small_ms": tuple(small)},
        ),
    )


def _check_delivered(service: BenchService) -> None:
    """AssertionError unless the VM gets a scheduled event as soon as the call has returned."""
    event_id = service.schedule("web-0")[0]
    events = service.sample("web-0").json["Events"]
    assert [event["EventId"] for event in events] == [event_id], f"the VM gets {events}, not event {event_id}"
    service.withdraw(event_id)


def _schedule(service: BenchService) -> float:
    """Return the milliseconds to schedule an event, and withdraw it."""
    begin = time.perf_counter()
    event_id = service.schedule("web-0")[0]
    took = time.perf_counter() - begin
    service.withdraw(event_id)
    return took * 1e3
