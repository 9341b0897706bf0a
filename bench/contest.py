"""Ours and nginx in turn, under the same load: what each request cost the server, and how many it answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.figure import Figure
from bench.ground import Ground
from bench.nginx import nginx
from bench.process import cpu_s
from bench.statistic import ratio, spread
from bench.subject import TARGET, subject
from bench.wrk import Load


@dataclass(frozen=True, slots=True)
class Contender:
    pid: int
    url: str
    rates: list[float] = field(default_factory=list)  # requests a second
    costs: list[float] = field(default_factory=list)  # microseconds of the server's CPU time per request

    def run(self, load: Callable[[str], Load]) -> Load:
        before = cpu_s(self.pid)
        seen = load(self.url)
        self.rates.append(seen.rate)
        self.costs.append((cpu_s(self.pid) - before) / seen.requests * 1e6)
        return seen


@contextmanager
def arena(ground: Ground, name: str, *, per_connection: bool = False) -> Iterator[tuple[Contender, Contender]]:
    """Ours and nginx, both running."""
    with subject(ground.directory / name / "ours") as service:
        url = service.url("web-0")
        with nginx(ground.directory / name / "nginx", service.sample("web-0"), TARGET) as other:
            their_url = other.connection_url if per_connection else other.url
            yield Contender(service.pid, url), Contender(other.pid, their_url)


def compete(ground: Ground, what: str, pair: tuple[Contender, Contender], load: Callable[[str, float], Load]) -> None:
    """Warm both up, then run them in turn."""
    for contender in pair:
        load(contender.url, 1.0)
    for _ in ground.track(what, range(ground.runs)):
        for contender in pair:
            contender.run(lambda url: load(url, ground.run_s))


def cost_and_rate(name: str, pair: tuple[Contender, Contender]) -> tuple[Figure, Figure]:
    ours, theirs = pair
    cost = Figure(
        name=f"{name}-cpu",
        value=ratio(theirs.costs, ours.costs),
        note=f"runs of ours differ by {spread(ours.costs):.0%}, of nginx by {spread(theirs.costs):.0%}",
        samples={"ours_us": tuple(ours.costs), "nginx_us": tuple(theirs.costs)},
    )
    rate = Figure(
        name=f"{name}-rate",
        value=ratio(ours.rates, theirs.rates),
        samples={"ours_per_s": tuple(ours.rates), "nginx_per_s": tuple(theirs.rates)},
    )
    return cost, rate
