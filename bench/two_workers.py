"""What a second metadata process costs: CPU per poll of the whole service, with two workers and with one."""

from __future__ import annotations

from contextlib import ExitStack

from bench.contest import Contender, compete
from bench.figure import Figure, absent
from bench.ground import Ground
from bench.statistic import ratio
from bench.subject import TARGET, Subject
from bench.wrk import wrk
from forewarn.testing.process import run_forewarn

_FLAG = "--workers"
_FLEET = '[[hosts]]\nname = "host"\n\n[[vms]]\nname = "web"\naddress = "127.0.0.1"\n'


def measure(ground: Ground) -> tuple[Figure, ...]:
    if _FLAG not in run_forewarn(ground.directory, "serve", "--help").stdout:
        return (absent("two-workers-cpu", f"`forewarn serve` has no {_FLAG}"),)
    with ExitStack() as stack:
        two, one = (_contender(stack, ground, count) for count in ("2", "1"))
        compete(ground, "two workers and one in turn", (two, one), lambda url, seconds: wrk(url, seconds=seconds))
    samples = {"two_us": tuple(two.costs), "one_us": tuple(one.costs)}
    return (Figure(name="two-workers-cpu", value=ratio(two.costs, one.costs), samples=samples),)


def _contender(stack: ExitStack, ground: Ground, count: str) -> Contender:
    place = ground.directory / f"workers-{count}"
    service = Subject(data=place, fleet=_FLEET, command="serve", arguments=(_FLAG, count))
    stack.enter_context(service)
    return Contender(service.pid, f"http://127.0.0.1:{service.port}{TARGET}")
