"""A rollout over all hosts of a lab, run to its end by advancing the lab clock."""

from __future__ import annotations

import time

from bench.figure import Figure
from bench.process import cpu_s
from bench.run_context import RunContext
from bench.service import BenchService, running_service

_SIZES = (1_000, 3_000, 10_000)
_PER_HOST = 10
_PER_SET = 20
_STEP_S = 600.0
_MAX_STEPS = 200


def measure(context: RunContext) -> tuple[Figure, ...]:
    sizes = [context.scaled(size) for size in _SIZES]
    results = [_run_rollout(context, size) for size in context.track("rollouts over increasing numbers of VMs", sizes)]
    took, busy = [seconds for seconds, _ in results], [cpu for _, cpu in results]
    per_vm = [cpu / size * 1e3 for cpu, size in zip(busy, sizes, strict=True)]
    note = ", ".join(f"{size:,}: {seconds:.1f} s" for size, seconds in zip(sizes, took, strict=True))
    samples = {"vms": tuple(map(float, sizes)), "seconds": tuple(took), "cpu_ms_per_vm": tuple(per_vm)}
    return (
        Figure(name="rollout-time", value=took[-1], note=note, samples=samples),
        Figure(name="rollout-growth", value=per_vm[-1] / per_vm[0], note=f"{per_vm[0]:.1f} and {per_vm[-1]:.1f} ms"),
    )


def fleet(vms: int) -> tuple[str, int]:
    """Return a fleet file and its number of hosts; half of the VMs are in availability sets."""
    hosts, sets = max(5, vms // _PER_HOST), max(1, vms // 2 // _PER_SET)
    singles = vms - sets * _PER_SET
    text = f'[[hosts]]\nname = "host-{{n}}"\ncount = {hosts}\n\n[[vms]]\nname = "web-{{n}}"\ncount = {singles}\n'
    for number in range(sets):
        text += f'\n[[availability_sets]]\nname = "set-{number}"\nupdate_domains = 5\n'
        text += f'\n[[vms]]\nname = "set-{number}-{{n}}"\ncount = {_PER_SET}\navailability_set = "set-{number}"\n'
    return text, hosts


def _run_rollout(context: RunContext, vms: int) -> tuple[float, float]:
    """Return the seconds of real time and of CPU from the call to the last VM."""
    text, hosts = fleet(vms)
    with running_service(context.directory / f"rollout-{vms}", text) as service:
        service.ask("POST", "/clock/speed", {"speed": 0})
        begin, before = time.perf_counter(), cpu_s(service.pid)
        body = {"impact": "update", "hosts": [f"host-{n}" for n in range(hosts)]}
        rollout_id = service.ask("POST", "/rollouts", body)["id"]
        _advance_to_end(service, rollout_id, vms)
        return time.perf_counter() - begin, cpu_s(service.pid) - before


def _advance_to_end(service: BenchService, rollout_id: str, vms: int) -> None:
    for _ in range(_MAX_STEPS):
        service.ask("POST", "/clock/advance", {"by_s": _STEP_S})
        rollouts = service.ask("GET", "/rollouts")["rollouts"]
        rollout = next(rollout for rollout in rollouts if rollout["id"] == rollout_id)

        if rollout["progress"] == "completed":
            assert rollout["tally"]["done"] == vms, rollout["tally"]
            return
    raise TimeoutError(
        f"the rollout over {vms} VMs is {rollout['progress']} after {_MAX_STEPS} steps: {rollout['tally']}"
    )
