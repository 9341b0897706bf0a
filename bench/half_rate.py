"""Latency where there is room: both servers at the same rate, half of what the slower one can do.

wrk has no rate, but pauses: 512 clients wait at random between an answer and the next request, on average as long as
gives the rate. A pause is much longer than an answer takes, so clients keep asking while a server stalls. They come one
after the other within the first second: were all to connect at one instant, the p99 would be that of their arrival, and
of nothing after it. (h2load has a rate, but sends the requests of all its clients at one instant, and measures that
queue.) A p99 differs more between runs than a mean does, so there are more of them.
"""

from __future__ import annotations

from pathlib import Path

from bench.contest import arena
from bench.figure import Figure
from bench.ground import Ground
from bench.statistic import median, ratio
from bench.wrk import Load, wrk

_SCRIPT = Path(__file__).parent / "paced.lua"
_CLIENTS = 512


def measure(ground: Ground) -> tuple[Figure, ...]:
    seen: tuple[list[Load], list[Load]] = ([], [])
    with arena(ground, "half-rate") as pair:
        rate = min(wrk(contender.url, seconds=ground.run_s).rate for contender in pair) / 2
        for _ in ground.track(f"{rate:,.0f} polls a second, ours and nginx in turn", range(2 * ground.runs - 1)):
            for contender, runs in zip(pair, seen, strict=True):
                runs.append(_run(contender.url, rate, ground.run_s))
    ours, theirs = ([float(run.p99_us) for run in runs] for runs in seen)
    rates = " and ".join(f"{median([run.rate for run in runs]):,.0f}" for runs in seen)
    return (
        Figure(
            name="half-rate-p99",
            value=ratio(ours, theirs),
            note=f"{median(ours) / 1e3:.2f} and {median(theirs) / 1e3:.2f} ms, at {rates} a second",
            samples={"ours_us": tuple(ours), "nginx_us": tuple(theirs), "rate": (rate,)},
        ),
    )


def pause_ms(rate: float) -> int:
    """The mean pause that gives the rate; longer ones are cut off at twice it."""
    return max(1, round(_CLIENTS / rate * 1e3))


def _run(url: str, rate: float, seconds: float) -> Load:
    pause = str(pause_ms(rate))
    return wrk(url, seconds=seconds, connections=_CLIENTS, script=_SCRIPT, arguments=(pause, str(_CLIENTS)))
