"""Planning a rollout over all hosts with budgets: which events it would publish first, and what waits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from bench.figure import Figure
from bench.process import cpu_s
from bench.rollout import fleet
from bench.run_context import RunContext
from bench.service import BenchService, running_service

FIGURES = ("planning-time", "planning-growth")
_SIZES = (10_000, 100_000)
_PLANS = 5  # of each size; the median counts for the time, all of them for the CPU
_BUDGETS = (
    {"name": "all", "max_percent": 5},
    {"name": "regions", "max_percent": 10, "per": "location"},
    {"name": "scopes", "max_percent": 50, "per": "scope"},
    {"name": "domains", "max_vms": 1, "per": "fault-domain"},
)


def measure(context: RunContext) -> tuple[Figure, ...]:
    """Plan rollouts over 10,000 and 100,000 VMs, each several times, with four budgets."""
    sizes = [context.scaled(size) for size in _SIZES]
    results = [_plan(context, size) for size in context.track("rollouts planned over all VMs", sizes)]
    took, per_vm = [seconds for seconds, _ in results], [cpu for _, cpu in results]
    note = ", ".join(f"{size:,}: {seconds:.2f} s" for size, seconds in zip(sizes, took, strict=True))
    samples = {"vms": tuple(map(float, sizes)), "seconds": tuple(took), "cpu_us_per_vm": tuple(per_vm)}
    growth = per_vm[-1] / per_vm[0]
    return (
        Figure(name="planning-time", value=took[-1], note=note, samples=samples),
        Figure(name="planning-growth", value=growth, note=f"{per_vm[0]:.0f} and {per_vm[-1]:.0f} µs"),
    )


def _plan(context: RunContext, vms: int) -> tuple[float, float]:
    """Return the median seconds of real time for one plan, and its CPU time per VM in microseconds."""
    text, hosts = fleet(vms)
    with running_service(context.directory / f"planning-{vms}", text) as service:
        service.ask("POST", "/clock/speed", {"speed": 0})
        for budget in _BUDGETS:
            service.ask("POST", "/budgets", budget)
        body = {"impact": "update", "hosts": [f"host-{n}" for n in range(hosts)]}
        _plan_once(service, body)  # the first call also reads what others find in memory
        before = cpu_s(service.pid)
        took = [_plan_once(service, body) for _ in range(_PLANS)]
        return statistics.median(took), (cpu_s(service.pid) - before) / _PLANS / vms * 1e6


def _plan_once(service: BenchService, body: Mapping[str, object]) -> float:
    begin = time.perf_counter()
    preview = service.ask("POST", "/rollouts/preview", body)
    took = time.perf_counter() - begin
    assert preview["events"], "a plan within budgets of at least one VM has events"
    return took
