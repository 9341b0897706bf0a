"""Latency where there is room: both servers at the same fixed rate, half of what the slower one can do."""

from __future__ import annotations

from urllib.parse import urlsplit

from bench.contest import arena
from bench.figure import Figure
from bench.ground import Ground
from bench.pacer import Paced, paced
from bench.statistic import ratio
from bench.subject import TARGET
from bench.wrk import wrk

_MOST = 20_000.0  # a second: what the client on its core can do without being late itself


def measure(ground: Ground) -> tuple[Figure, ...]:
    seen: tuple[list[Paced], list[Paced]] = ([], [])
    with arena(ground, "half-rate") as pair:
        rate = min(_MOST, min(wrk(contender.url, seconds=ground.run_s).rate for contender in pair) / 2)
        for _ in ground.track(f"{rate:,.0f} polls a second, ours and nginx in turn", range(ground.runs)):
            for contender, runs in zip(pair, seen, strict=True):
                runs.append(_run(contender.url, rate, ground.run_s))
    ours, theirs = ([run.p99_us for run in runs] for runs in seen)
    late = max(run.late_share for runs in seen for run in runs)
    return (
        Figure(
            name="half-rate-p99",
            value=ratio(ours, theirs),
            note=f"at {rate:,.0f} polls a second; the client was late with up to {late:.1%} of them",
            samples={"ours_us": tuple(ours), "nginx_us": tuple(theirs), "rate": (rate,)},
        ),
    )


def _run(url: str, rate: float, seconds: float) -> Paced:
    at = urlsplit(url)
    return paced(at.hostname or "", at.port or 80, TARGET, rate=rate, seconds=seconds)
