"""Our service and nginx in turn under the same load: CPU per request, and requests a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from bench.figure import Figure
from bench.nginx import nginx
from bench.process import connections_made, cpu_s
from bench.run_context import RunContext
from bench.sample_statistics import ratio, spread
from bench.service import TARGET, running_service
from bench.wrk import Load
from tests.support.service_process import HttpAnswer

_TOLERANCE = 0.1  # connections per poll: 64 clients that keep theirs open make fewer even in one second


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """A server under load, and the samples of its runs."""

    pid: int
    url: str
    response_bytes: int = 0  # the minimum size of a response
    rates: list[float] = field(default_factory=list)  # requests a second
    costs: list[float] = field(default_factory=list)  # microseconds of the server's CPU time per request
    connections: list[float] = field(default_factory=list)  # opened per request

    def run(self, load: Callable[[str], Load]) -> Load:
        """Apply the load once and add the samples.

        AssertionError if a response was too short, or if the process used no CPU: then another one answered.
        """
        connections_before, cpu_before = connections_made(), cpu_s(self.pid)
        result = load(self.url)
        used_s, made = cpu_s(self.pid) - cpu_before, connections_made() - connections_before
        assert used_s > 0, f"process {self.pid} did nothing while {self.url} was under load"
        assert result.bytes >= result.requests * self.response_bytes, f"{self.url} sent incomplete responses"
        self.rates.append(result.rate)
        self.costs.append(used_s / result.requests * 1e6)
        self.connections.append(made / result.requests)
        return result


Pair: TypeAlias = tuple[MeasuredServer, MeasuredServer]


def response_size(answer: HttpAnswer) -> int:
    """Return the bytes of a 200 response on the wire."""
    head = "".join(f"{name}: {text}\r\n" for name, text in answer.headers.items())
    return len(f"HTTP/1.1 200 OK\r\n{head}\r\n") + len(answer.body)


@contextmanager
def ours_and_nginx(context: RunContext, name: str, *, per_connection: bool = False) -> Iterator[Pair]:
    """Run our service and nginx until the block ends."""
    with running_service(context.directory / name / "ours") as service:
        url, answer = service.url("web-0"), service.sample("web-0")
        with nginx(context.directory / name / "nginx", answer, TARGET) as other:
            nginx_url = other.connection_url if per_connection else other.url
            size = response_size(answer)
            yield MeasuredServer(service.pid, url, size), MeasuredServer(other.pid, nginx_url, size)


def run_in_turn(context: RunContext, description: str, pair: Pair, load: Callable[[str, float], Load]) -> None:
    """Warm both servers up, then apply the load to them in turn."""
    for server in pair:
        load(server.url, 1.0)
    for _ in context.track(description, range(context.runs)):
        for server in pair:
            server.run(lambda url: load(url, context.run_s))


def check_connections_kept(pair: Iterable[MeasuredServer]) -> None:
    """AssertionError if clients reconnected; other programs of the machine may connect too."""
    for server in pair:
        made = max(server.connections)
        assert made < _TOLERANCE, f"{server.url} had {made:.2f} connections per poll, so they were not kept open"


def check_connection_per_poll(pair: Iterable[MeasuredServer]) -> None:
    """AssertionError if polls shared connections."""
    for server in pair:
        made = min(server.connections)
        assert made > 1 - _TOLERANCE, f"{server.url} had {made:.2f} connections per poll, not one for each"


def cost_and_rate(name: str, pair: Pair) -> tuple[Figure, Figure]:
    """Return the figures NAME-cpu (nginx : ours) and NAME-rate (ours : nginx)."""
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
