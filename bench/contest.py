"""Ours and nginx in turn, under the same load: what each request cost the server, and how many it answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.figure import Figure
from bench.ground import Ground
from bench.nginx import nginx
from bench.process import connections_made, cpu_s
from bench.statistic import ratio, spread
from bench.subject import TARGET, subject
from bench.wrk import Load
from tests.support.service_process import HttpAnswer

_KEPT = 0.1  # connections a poll; 64 clients that keep theirs make fewer even in a second


@dataclass(frozen=True, slots=True)
class Contender:
    pid: int
    url: str
    answer_bytes: int = 0  # the least that an answer has
    rates: list[float] = field(default_factory=list)  # requests a second
    costs: list[float] = field(default_factory=list)  # microseconds of the server's CPU time per request
    connections: list[float] = field(default_factory=list)  # that were made, per request

    def run(self, load: Callable[[str], Load]) -> Load:
        """AssertionError if answers were less than they should be, or cost nothing, which is to look elsewhere."""
        made, before = connections_made(), cpu_s(self.pid)
        seen = load(self.url)
        used_s, made = cpu_s(self.pid) - before, connections_made() - made
        assert used_s > 0, f"process {self.pid} did nothing while {self.url} was asked"
        assert seen.bytes >= seen.requests * self.answer_bytes, f"{self.url} did not always answer in full"
        self.rates.append(seen.rate)
        self.costs.append(used_s / seen.requests * 1e6)
        self.connections.append(made / seen.requests)
        return seen


def size_of(answer: HttpAnswer) -> int:
    """Bytes on the wire, of a good one."""
    head = "".join(f"{name}: {text}\r\n" for name, text in answer.headers.items())
    return len(f"HTTP/1.1 200 OK\r\n{head}\r\n") + len(answer.body)


@contextmanager
def arena(ground: Ground, name: str, *, per_connection: bool = False) -> Iterator[tuple[Contender, Contender]]:
    """Ours and nginx, both running."""
    with subject(ground.directory / name / "ours") as service:
        url, answer = service.url("web-0"), service.sample("web-0")
        with nginx(ground.directory / name / "nginx", answer, TARGET) as other:
            their_url = other.connection_url if per_connection else other.url
            least = size_of(answer)
            yield Contender(service.pid, url, least), Contender(other.pid, their_url, least)


def compete(ground: Ground, what: str, pair: tuple[Contender, Contender], load: Callable[[str, float], Load]) -> None:
    """Warm both up, then run them in turn."""
    for contender in pair:
        load(contender.url, 1.0)
    for _ in ground.track(what, range(ground.runs)):
        for contender in pair:
            contender.run(lambda url: load(url, ground.run_s))


def must_keep_connections(pair: Iterable[Contender]) -> None:
    """AssertionError if more were made than there are clients; others on the machine make some too."""
    for contender in pair:
        made = max(contender.connections)
        assert made < _KEPT, f"{contender.url} was asked over {made:.2f} connections a poll, not over kept ones"


def must_make_connections(pair: Iterable[Contender]) -> None:
    """AssertionError if polls shared one."""
    for contender in pair:
        made = min(contender.connections)
        assert made > 1 - _KEPT, f"{contender.url} was asked over {made:.2f} connections a poll, not one for each"


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
