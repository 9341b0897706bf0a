"""Latency at half load: both servers at the same rate, half of the maximum of the slower one.

wrk has no option for a rate, so 512 clients pause for a random time before each request; the mean pause gives the
rate. A pause is much longer than a response takes, so requests keep coming while a server stalls. The clients connect
within the first second and not all at once, because then the p99 would measure the connecting. (h2load has a rate,
but sends the requests of all clients at once and measures that queue.) There are more runs than elsewhere, because a
p99 varies more than a mean.
"""

from __future__ import annotations

from pathlib import Path

from bench.comparison import ours_and_nginx
from bench.figure import Figure
from bench.run_context import RunContext
from bench.sample_statistics import median, ratio
from bench.wrk import Load, wrk

_SCRIPT = Path(__file__).parent / "paced.lua"
_CLIENTS = 512


def measure(context: RunContext) -> tuple[Figure, ...]:
    loads: tuple[list[Load], list[Load]] = ([], [])
    with ours_and_nginx(context, "half-rate") as pair:
        rate = min(wrk(server.url, seconds=context.run_s).rate for server in pair) / 2
        for _ in context.track(f"{rate:,.0f} polls a second, ours and nginx in turn", range(2 * context.runs - 1)):
            for server, runs in zip(pair, loads, strict=True):
                runs.append(_run(server.url, rate, context.run_s))
    ours, theirs = ([float(run.p99_us) for run in runs] for runs in loads)
    rates = " and ".join(f"{median([run.rate for run in runs]):,.0f}" for runs in loads)
    return (
        Figure(
            name="half-rate-p99",
            value=ratio(ours, theirs),
            note=f"{median(ours) / 1e3:.2f} and {median(theirs) / 1e3:.2f} ms, at {rates} a second",
            samples={"ours_us": tuple(ours), "nginx_us": tuple(theirs), "rate": (rate,)},
        ),
    )


def pause_ms(rate: float) -> int:
    """Return the mean pause of a client that gives this rate; paced.lua cuts pauses off at twice the mean."""
    return max(1, round(_CLIENTS / rate * 1e3))


def _run(url: str, rate: float, seconds: float) -> Load:
    pause = str(pause_ms(rate))
    return wrk(url, seconds=seconds, connections=_CLIENTS, script=_SCRIPT, arguments=(pause, str(_CLIENTS)))
