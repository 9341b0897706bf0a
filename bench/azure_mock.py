"""Azure's mock server for Scheduled Events, in Flask. It does not run here: its rate is quoted."""

from __future__ import annotations

from bench.figure import Figure, absent
from bench.run_context import RunContext

QUOTED = 0.02  # of nginx's rate, measured when the architecture was chosen


def measure(context: RunContext) -> tuple[Figure, ...]:
    ours = context.figures.get("keep-alive-rate")
    if ours is None or ours.value is None:
        return (absent("azure-mock-rate", "needs the figure keep-alive-rate of the same run"),)
    note = f"ours is {ours.value:.2f} of nginx; the mock server's {QUOTED:g} of nginx is quoted, not measured here"
    return (Figure(name="azure-mock-rate", value=ours.value / QUOTED, note=note),)
