"""Start with 100,000 VMs: from the command to the first poll that is answered, and the most memory it took."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.figure import Figure
from bench.ground import Ground
from bench.process import cpu_s, peak_bytes
from bench.statistic import median
from bench.subject import Subject, single_vms

_VMS = 100_000
_STARTS = 3


def large_fleet(ground: Ground) -> tuple[str, int]:
    """Every VM is a scope of its own, which is the most there can be; and how many there are."""
    count = ground.sized(_VMS)
    return single_vms(count, max(1, count // 40)), count


def measure(ground: Ground) -> tuple[Figure, ...]:
    fleet, vms = large_fleet(ground)
    service = Subject(data=ground.directory / "start", fleet=fleet)
    first = _start(service, vms)
    times = range(1 if ground.is_quick else _STARTS)
    starts = [_start(service, vms) for _ in ground.track("starts from the store", times)]
    took, busy, peaks = ([getattr(start, name) for start in starts] for name in ("took_s", "cpu_s", "peak_mib"))
    samples = {"start_s": tuple(took), "cpu_s": tuple(busy)}
    return (
        Figure(name="start-time", value=median(took), note=f"{median(busy):.1f} s of CPU", samples=samples),
        Figure(name="start-memory", value=median(peaks), samples={"peak_mib": tuple(peaks)}),
        Figure(name="first-start-time", value=first.took_s, note=f"once; {first.cpu_s:.1f} s of CPU"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    took_s: float
    cpu_s: float
    peak_mib: float


def _start(service: Subject, vms: int) -> Start:
    """The service is stopped again."""
    begin = time.perf_counter()
    with service:
        assert service.sample("web-7").status == 200
        took_s = time.perf_counter() - begin
        start = Start(took_s=took_s, cpu_s=cpu_s(service.pid), peak_mib=peak_bytes(service.pid) / 2**20)
        service.must_serve(vms)
        service.stop()
    return start
