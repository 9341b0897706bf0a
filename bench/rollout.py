"""A rollout over every host of a lab, played to its end by advancing the clock: durable, and as costly as its VMs
are many."""

from __future__ import annotations

import time

from bench.figure import Figure
from bench.ground import Ground
from bench.process import cpu_s
from bench.subject import Subject, subject

_SIZES = (1_000, 3_000, 10_000)
_PER_HOST = 10
_PER_SET = 20
_STEP_S = 600.0
_MOST_STEPS = 200


def measure(ground: Ground) -> tuple[Figure, ...]:
    sizes = [ground.sized(size) for size in _SIZES]
    played = [_roll_out(ground, size) for size in ground.track("rollouts over more and more VMs", sizes)]
    took, busy = [seconds for seconds, _ in played], [cpu for _, cpu in played]
    per_vm = [cpu / size * 1e3 for cpu, size in zip(busy, sizes, strict=True)]
    told = ", ".join(f"{size:,}: {seconds:.1f} s" for size, seconds in zip(sizes, took, strict=True))
    samples = {"vms": tuple(map(float, sizes)), "seconds": tuple(took), "cpu_ms_per_vm": tuple(per_vm)}
    return (
        Figure(name="rollout-time", value=took[-1], note=told, samples=samples),
        Figure(name="rollout-growth", value=per_vm[-1] / per_vm[0], note=f"{per_vm[0]:.1f} and {per_vm[-1]:.1f} ms"),
    )


def fleet(vms: int) -> tuple[str, int]:
    """Half of the VMs single, half in availability sets of five update domains; and how many hosts they are on."""
    hosts, sets = max(5, vms // _PER_HOST), max(1, vms // 2 // _PER_SET)
    singles = vms - sets * _PER_SET
    text = f'[[hosts]]\nname = "host-{{n}}"\ncount = {hosts}\n\n[[vms]]\nname = "web-{{n}}"\ncount = {singles}\n'
    for number in range(sets):
        text += f'\n[[availability_sets]]\nname = "set-{number}"\nupdate_domains = 5\n'
        text += f'\n[[vms]]\nname = "set-{number}-{{n}}"\ncount = {_PER_SET}\navailability_set = "set-{number}"\n'
    return text, hosts


def _roll_out(ground: Ground, vms: int) -> tuple[float, float]:
    """From the call that starts it until its last VM is done, in seconds: by the clock on the wall, and of CPU."""
    text, hosts = fleet(vms)
    with subject(ground.directory / f"rollout-{vms}", text) as service:
        service.ask("POST", "/clock/speed", {"speed": 0})
        begin, before = time.perf_counter(), cpu_s(service.pid)
        wish = {"impact": "update", "hosts": [f"host-{n}" for n in range(hosts)]}
        rollout_id = service.ask("POST", "/rollouts", wish)["id"]
        _play_out(service, rollout_id, vms)
        return time.perf_counter() - begin, cpu_s(service.pid) - before


def _play_out(service: Subject, rollout_id: str, vms: int) -> None:
    for _ in range(_MOST_STEPS):
        service.ask("POST", "/clock/advance", {"by_s": _STEP_S})
        seen = next(shown for shown in service.ask("GET", "/rollouts")["rollouts"] if shown["id"] == rollout_id)
        if seen["progress"] == "completed":
            assert seen["tally"]["done"] == vms, seen["tally"]
            return
    raise TimeoutError(f"the rollout over {vms} VMs is {seen['progress']} after {_MOST_STEPS} steps: {seen['tally']}")
