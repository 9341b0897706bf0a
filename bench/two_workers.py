"""What a second metadata process costs: CPU per poll of the whole service, with two workers and with one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from bench.contest import Contender, compete, size_of
from bench.figure import Figure
from bench.ground import Ground
from bench.process import cpu_s
from bench.statistic import ratio
from bench.subject import TARGET, Subject
from bench.wrk import wrk

_LEAST_SHARE = 0.1
_FLEET = '[[hosts]]\nname = "host"\n\n[[vms]]\nname = "web"\naddress = "127.0.0.1"\n'


def measure(ground: Ground) -> tuple[Figure, ...]:
    with ExitStack() as stack:
        services = [_service(stack, ground, count) for count in (2, 1)]
        two, one = (_contender(service) for service in services)
        before = [_busy_s(service) for service in services]
        compete(ground, "two workers and one in turn", (two, one), lambda url, seconds: wrk(url, seconds=seconds))
        for count, service, since in zip((2, 1), services, before, strict=True):
            must_share(count, since, _busy_s(service))
    samples = {"two_us": tuple(two.costs), "one_us": tuple(one.costs)}
    return (Figure(name="two-workers-cpu", value=ratio(two.costs, one.costs), samples=samples),)


def _contender(service: Subject) -> Contender:
    answer = service.guest("web", "GET", TARGET)
    return Contender(service.pid, f"http://127.0.0.1:{service.port}{TARGET}", size_of(answer))


def must_share(count: int, before: Mapping[int, float], after: Mapping[int, float]) -> None:
    """AssertionError unless so many workers were there all the time, and each had its share of the work."""
    assert len(before) == count, f"{len(before)} workers began where {count} were wanted"
    assert before.keys() == after.keys(), f"workers {[*before]} began, and {[*after]} ended"
    busy_s = [after[pid] - before[pid] for pid in before]
    assert min(busy_s) > _LEAST_SHARE * sum(busy_s), f"a worker had nothing to do: {busy_s} s of CPU"


def _busy_s(service: Subject) -> dict[int, float]:
    """CPU time of each worker until now, by its process."""
    return {worker["pid"]: cpu_s(worker["pid"]) for worker in service.ask("GET", "/service")["workers"]}


def _service(stack: ExitStack, ground: Ground, workers: int) -> Subject:
    place = ground.directory / f"workers-{workers}"
    service = Subject(data=place, fleet=_FLEET, command="serve", arguments=("--workers", str(workers)))
    stack.enter_context(service)
    return service
