"""A connection per poll, as curl and the Python code of Azure's documentation do."""

from __future__ import annotations

from bench.comparison import check_connection_per_poll, cost_and_rate, ours_and_nginx, run_in_turn
from bench.figure import Figure
from bench.run_context import RunContext
from bench.wrk import Load, wrk


def measure(context: RunContext) -> tuple[Figure, ...]:
    with ours_and_nginx(context, "connection", per_connection=True) as pair:
        run_in_turn(context, "a connection per poll, ours and nginx in turn", pair, _load)
    check_connection_per_poll(pair)
    return cost_and_rate("connection", pair)


def _load(url: str, seconds: float) -> Load:
    return wrk(url, seconds=seconds, headers=("Connection: close",))
