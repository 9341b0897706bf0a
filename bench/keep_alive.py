"""Polls over connections that are kept: 64 clients that ask again as soon as they are answered."""

from __future__ import annotations

from bench.contest import arena, compete, cost_and_rate, must_keep_connections
from bench.figure import Figure
from bench.ground import Ground
from bench.wrk import wrk


def measure(ground: Ground) -> tuple[Figure, ...]:
    with arena(ground, "keep-alive") as pair:
        compete(ground, "keep-alive, ours and nginx in turn", pair, lambda url, seconds: wrk(url, seconds=seconds))
    must_keep_connections(pair)
    return cost_and_rate("keep-alive", pair)
