"""Polls over keep-alive connections: 64 clients that poll again as soon as they get the response."""

from __future__ import annotations

from bench.comparison import check_connections_kept, cost_and_rate, ours_and_nginx, run_in_turn
from bench.figure import Figure
from bench.run_context import RunContext
from bench.wrk import wrk


def measure(context: RunContext) -> tuple[Figure, ...]:
    with ours_and_nginx(context, "keep-alive") as pair:
        run_in_turn(context, "keep-alive, ours and nginx in turn", pair, lambda url, seconds: wrk(url, seconds=seconds))
    check_connections_kept(pair)
    return cost_and_rate("keep-alive", pair)
