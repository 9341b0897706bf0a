"""Computes docs/explanation/scale.md and limits.md: from the figures of one machine to ten million VMs.

`python -m bench.scale` writes both.
"""

from __future__ import annotations

import math
from pathlib import Path

from bench.figure import Figure
from bench.result import Result, read_result
from bench.sample_statistics import median

REFERENCE = Path(__file__).parent / "results" / "reference.json"
_SCALE, _LIMITS_PAGE = (Path(__file__).parent / name for name in ("scale.md", "limits.md"))
_OUT = Path(__file__).parents[1] / "docs" / "explanation"

_VMS = 10_000_000
_MONTH_S = 30 * 86_400
_BAD_DAY_S = 8 * 3_600
_COMMITS = 4  # scheduled, approved, started, finished
_CORES = 16
_LOADED = 0.5
_SPARE = 1.1
_POSTGRES = 4_900  # transactions a second; measured when the stores were chosen, like those below
_LISTENERS = 300
_CHANGES = 1_000

_LIMITS = {  # figure → what limits it, according to profiles (perf, py-spy) and other runs
    "keep-alive-rate": "the client: wrk uses 98 % of its core with either server, and the server's core is not busy. "
    "CPU per poll shows the difference",
    "half-rate-p99": "stalls of the machine, which delay both servers: median, p90 and p95 differ by a few percent, "
    "but the p99 of one run is up to twice that of the next. If all 512 clients connected at once, it would be 1.5 to "
    "2: a new keep-alive connection costs us 60 µs of CPU, and nginx 32",
    "fleet-cpu": "few polls are answered per turn of the event loop, and the service stores when each VM has polled, "
    "which nginx does not",
    "mixed-rate": "changes: 3.6 ms of CPU for one alone (HTTP request, planning, commit and documents), 1.6 ms right "
    "after another. Repeated approvals cost as much as polls",
    "long-poll-alone": "one core, which answers one by one: 70 % of a response is `send` in the kernel, the rest is "
    "waking and writing in Python; workers share it",
    "approval-rate": "CPU, not the disk: 57 % is Python (48 in the deciding thread, 9 in the writing one), 18 % the "
    "kernel (`fdatasync` 3), 13 % SQLite. Approvals share commits, so this ratio is hard to reach with a disk that "
    "makes thousands of single commits a second, and easy with a slow one",
}


def scale_markdown(result: Result) -> str:
    """Return the estimate for ten million VMs: bench/scale.md with the figures of a result."""
    return _SCALE.read_text(encoding="utf-8").format(**_machine(result), **_sums(_Figures(result)))


def limits_markdown(result: Result) -> str:
    """Return the page about the limits of one machine: bench/limits.md with the figures of a result."""
    return _LIMITS_PAGE.read_text(encoding="utf-8").format(limits=_limits(_Figures(result)))


class _Figures:
    """The figures of a result by name; KeyError if one is missing."""

    def __init__(self, result: Result) -> None:
        self._figures = {figure.name: figure for figure in result.figures}

    def figure(self, name: str) -> Figure:
        return self._figures[name]

    def value(self, name: str) -> float:
        value = self.figure(name).value
        if value is None:
            raise LookupError(f"the result has no value of {name!r}: measure all rows again")
        return value

    def sample(self, name: str, of: str) -> float:
        return median(self.figure(name).samples[of])

    def first(self, name: str, of: str) -> float:
        return self.figure(name).samples[of][0]

    def last(self, name: str, of: str) -> float:
        return self.figure(name).samples[of][-1]


def _limits(figures: _Figures) -> str:
    rows = ((figures.figure(name), reason) for name, reason in _LIMITS.items())
    return "\n".join(
        f"| {figure.target.title} | {figure.text} | {figure.target.text} | {figure.verdict} | {reason} |"
        for figure, reason in rows
    )


def _machine(result: Result) -> dict[str, str | int]:
    return {
        "processor": result.machine.processor,
        "cores": result.machine.cores,
        "at": result.at[:10],
        "commit": result.commit,
        "load": f"{result.load_average:.1f}",
        "most_load": f"{max(figure.load_average for figure in result.figures):.1f}",
    }


def _sums(figures: _Figures) -> dict[str, float | str]:
    return {**_demand(), **_polling(figures), **_rest(figures)}


def _demand() -> dict[str, float | str]:
    third = _VMS // 3
    bad = third * _COMMITS / _BAD_DAY_S
    return {
        "vms": _VMS,
        "month": _MONTH_S,
        "third": third,
        "usual": _VMS * _COMMITS / _MONTH_S,
        "bad": bad,
        "polls_per_commit": _VMS / bad,
        "maintained": third / _BAD_DAY_S,
        "pg_share": bad / _POSTGRES,
        "times_record": _VMS / _POSTGRES,
        "hourly": _VMS / 3_600,
        "record_vms": _POSTGRES / bad * _VMS / 1e6,
        "relay_vms": _CHANGES / bad * _VMS / 1e6,
        "long_polls": _VMS / 300,
        "hourly_batches": _VMS / 3_600 / 100,
        "rollouts": third / 10_000,
    }


def _polling(figures: _Figures) -> dict[str, float | str]:
    poll_us, nginx_us = (figures.sample("keep-alive-cpu", of) for of in ("ours_us", "nginx_us"))
    connection_us, nginx_connection_us = (figures.sample("connection-cpu", of) for of in ("ours_us", "nginx_us"))
    fleet_us, nginx_fleet_us = (figures.sample("fleet-cpu", of) for of in ("ours_us", "nginx_us"))
    nodes = nodes_for(poll_us)
    return {
        "fleet_us": fleet_us,
        "nginx_fleet_us": nginx_fleet_us,
        "poll_us": poll_us,
        "nginx_us": nginx_us,
        "connection_us": connection_us,
        "nginx_connection_us": nginx_connection_us,
        "cores_keep": cores_for(poll_us),
        "cores_connection": cores_for(connection_us),
        "nodes_keep": nodes,
        "nodes_connection": nodes_for(connection_us),
        "nodes_nginx": nodes_for(nginx_us),
        "nodes_nginx_connection": nodes_for(nginx_connection_us),
        "nginx_share": nginx_us / poll_us,
        "connection_factor": connection_us / poll_us,
        "long_poll_cores": cores_for(poll_us) / 300,
        "vms_per_node": _VMS / nodes,
        "rows_per_node": _VMS / nodes / 60,
        "within_measured": f" are fewer than the {_LISTENERS} listeners that were measured"
        if nodes <= _LISTENERS
        else f" are more than the {_LISTENERS} listeners that were measured, so several share a subscription",
    }


def _rest(figures: _Figures) -> dict[str, float | str]:
    vms_per_node = _VMS / nodes_for(figures.sample("keep-alive-cpu", "ours_us"))
    idle_kib, waiting_kib = figures.value("idle-memory"), figures.value("waiting-memory")
    start_mib, start_s = figures.value("start-memory"), figures.value("start-time")
    rollout_ms = figures.last("rollout-time", "cpu_ms_per_vm")
    return {
        "idle_kib": idle_kib,
        "waiting_kib": waiting_kib,
        "start_mib": start_mib,
        "start_s": start_s,
        "state_gib": vms_per_node / 100_000 * start_mib / 1024,
        "connection_gib": vms_per_node * idle_kib / 1024**2,
        "waiting_gib": _VMS * waiting_kib / 1024**2,
        "node_start_s": vms_per_node / 100_000 * start_s,
        "process_start_s": vms_per_node / 100_000 * start_s / _CORES,
        "long_poll_ms": figures.value("long-poll-last"),
        "rollout_ms": rollout_ms,
        "approvals": figures.sample("approval-rate", "approvals_per_s"),
        "small_rollout_ms": figures.first("rollout-time", "cpu_ms_per_vm"),
        "control_cores": _VMS // 3 / _BAD_DAY_S * rollout_ms / 1e3,
    }


def cores_for(poll_us: float) -> float:
    """Return how many half-loaded cores serve one poll a second of every VM."""
    return _VMS * poll_us / 1e6 / _LOADED


def nodes_for(poll_us: float) -> int:
    """Return how many nodes of 16 cores that is, with a tenth spare."""
    return math.ceil(cores_for(poll_us) / _CORES * _SPARE)


if __name__ == "__main__":
    reference = read_result(REFERENCE)
    (_OUT / "scale.md").write_text(scale_markdown(reference), encoding="utf-8")
    (_OUT / "limits.md").write_text(limits_markdown(reference), encoding="utf-8")
