"""Start with 100,000 VMs: the time from the command to the first poll, and the peak memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.figure import Figure
from bench.process import cpu_s, peak_memory_bytes
from bench.run_context import RunContext
from bench.sample_statistics import median
from bench.service import BenchService, single_vms

_VMS = 100_000
_STARTS = 3


def large_fleet(context: RunContext) -> tuple[str, int]:
    """Return a fleet file with as many scopes as VMs, and the number of VMs."""
    count = context.scaled(_VMS)
    return single_vms(count, max(1, count // 40)), count


def measure(context: RunContext) -> tuple[Figure, ...]:
    fleet, vms = large_fleet(context)
    service = BenchService(data=context.directory / "start", fleet=fleet)
    first = _start(service, vms)
    times = range(1 if context.is_quick else _STARTS)
    starts = [_start(service, vms) for _ in context.track("starts from the store", times)]
    took, busy, peaks = ([getattr(start, name) for start in starts] for name in ("took_s", "cpu_s", "peak_mib"))
    samples = {"start_s": tuple(took), "cpu_s": tuple(busy)}
    return (
        Figure(name="start-time", value=median(took), note=f"{median(busy):.1f} s of CPU", samples=samples),
        Figure(name="start-memory", value=median(peaks), samples={"peak_mib": tuple(peaks)}),
        Figure(name="first-start-time", value=first.took_s, note=f"once; {first.cpu_s:.1f} s of CPU"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The measurements of one start."""

    took_s: float
    cpu_s: float
    peak_mib: float


def _start(service: BenchService, vms: int) -> Start:
    """Start the service, poll once, and stop it."""
    begin = time.perf_counter()
    with service:
        assert service.sample("web-7").status == 200
        took_s = time.perf_counter() - begin
        start = Start(took_s=took_s, cpu_s=cpu_s(service.pid), peak_mib=peak_memory_bytes(service.pid) / 2**20)
        service.check_vm_count(vms)
        service.stop()
    return start
