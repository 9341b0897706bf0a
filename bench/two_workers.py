"""CPU per poll of the whole service with two workers, compared with one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from bench.comparison import MeasuredServer, response_size, run_in_turn
from bench.figure import Figure
from bench.process import cpu_s
from bench.run_context import RunContext
from bench.sample_statistics import ratio
from bench.service import TARGET, BenchService
from bench.wrk import wrk

_MIN_SHARE = 0.1
_FLEET = '[[hosts]]\nname = "host"\n\n[[vms]]\nname = "web"\naddress = "127.0.0.1"\n'


def measure(context: RunContext) -> tuple[Figure, ...]:
    with ExitStack() as stack:
        services = [_service(stack, context, count) for count in (2, 1)]
        two, one = (_measured_server(service) for service in services)
        before = [_busy_s(service) for service in services]
        run_in_turn(context, "two workers and one in turn", (two, one), lambda url, seconds: wrk(url, seconds=seconds))
        for count, service, since in zip((2, 1), services, before, strict=True):
            check_workers_shared(count, since, _busy_s(service))
    samples = {"two_us": tuple(two.costs), "one_us": tuple(one.costs)}
    return (Figure(name="two-workers-cpu", value=ratio(two.costs, one.costs), samples=samples),)


def _measured_server(service: BenchService) -> MeasuredServer:
    answer = service.guest("web", "GET", TARGET)
    return MeasuredServer(service.pid, f"http://127.0.0.1:{service.port}{TARGET}", response_size(answer))


def check_workers_shared(count: int, before: Mapping[int, float], after: Mapping[int, float]) -> None:
    """AssertionError unless the same `count` workers ran all the time and each did a part of the work."""
    assert len(before) == count, f"{len(before)} workers started, not {count}"
    assert before.keys() == after.keys(), f"workers {[*before]} started, and {[*after]} are left"
    busy_s = [after[pid] - before[pid] for pid in before]
    assert min(busy_s) > _MIN_SHARE * sum(busy_s), f"a worker had nothing to do: {busy_s} s of CPU"


def _busy_s(service: BenchService) -> dict[int, float]:
    """Return the CPU time of each worker, by process id."""
    return {worker["pid"]: cpu_s(worker["pid"]) for worker in service.ask("GET", "/service")["workers"]}


def _service(stack: ExitStack, context: RunContext, workers: int) -> BenchService:
    directory = context.directory / f"workers-{workers}"
    service = BenchService(data=directory, fleet=_FLEET, command="serve", arguments=("--workers", str(workers)))
    stack.enter_context(service)
    return service
