"""Start with 100,000 VMs: from the command to the first poll that is answered, and the most memory it took."""

from __future__ import annotations

import time

from bench.figure import Figure
from bench.ground import Ground
from bench.process import peak_bytes
from bench.statistic import median
from bench.subject import Subject, single_vms

_VMS = 100_000
_STARTS = 3


def large_fleet(ground: Ground) -> str:
    """Every VM is a scope of its own, which is the most there can be."""
    count = ground.sized(_VMS)
    return single_vms(count, max(1, count // 40))


def measure(ground: Ground) -> tuple[Figure, ...]:
    service = Subject(data=ground.directory / "start", fleet=large_fleet(ground))
    first_s, _ = _start(service)
    starts = [_start(service) for _ in ground.track("starts from the store", range(1 if ground.is_quick else _STARTS))]
    times, peaks = [took for took, _ in starts], [peak for _, peak in starts]
    return (
        Figure(name="start-time", value=median(times), samples={"start_s": tuple(times)}),
        Figure(name="start-memory", value=median(peaks), samples={"peak_mib": tuple(peaks)}),
        Figure(name="first-start-time", value=first_s, note="once"),
    )


def _start(service: Subject) -> tuple[float, float]:
    """How long it took, and the most memory in MiB; the service is stopped again."""
    begin = time.perf_counter()
    with service:
        assert service.sample("web-7").status == 200
        took = time.perf_counter() - begin
        peak = peak_bytes(service.pid) / 2**20
        service.stop()
    return took, peak
