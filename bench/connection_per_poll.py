"""A connection per poll, as curl and the documentation's Python do: connect, ask, read, close."""

from __future__ import annotations

from bench.contest import arena, compete, cost_and_rate, must_make_connections
from bench.figure import Figure
from bench.ground import Ground
from bench.wrk import Load, wrk


def measure(ground: Ground) -> tuple[Figure, ...]:
    with arena(ground, "connection", per_connection=True) as pair:
        compete(ground, "a connection per poll, ours and nginx in turn", pair, _load)
    must_make_connections(pair)
    return cost_and_rate("connection", pair)


def _load(url: str, seconds: float) -> Load:
    return wrk(url, seconds=seconds, headers=("Connection: close",))
