"""Computes docs/contributing/scale.md and limits.md: from the figures of one machine to ten million VMs.

`python -m bench.scale` writes both.
"""

from __future__ import annotations

import math
from pathlib import Path

from bench.figure import Figure
from bench.host_nodes import CHANGES_PER_S, HOSTS, HOSTS_PER_CHANGE, REAL_NODES
from bench.result import Result, read_result
from bench.sample_statistics import median
from forewarn.cluster.messages import HEARTBEAT_INTERVAL_S

REFERENCE = Path(__file__).parent / "results" / "reference.json"
CLUSTER = Path(__file__).parent / "results" / "cluster.json"  # the rows of a cluster, measured together
_SCALE, _LIMITS_PAGE = (Path(__file__).parent / name for name in ("scale.md", "limits.md"))
_OUT = Path(__file__).parents[1] / "docs" / "contributing"

_VMS = 10_000_000
_MONTH_S = 30 * 86_400
_BAD_DAY_S = 8 * 3_600
_COMMITS = 4  # scheduled, approved, started, finished
_CORES = 16
_LOADED = 0.5
_SPARE = 1.1
_POSTGRES = 4_900  # transactions a second; measured when the stores were chosen, like those below
_VMS_PER_HOST = 40
_CONTROL_NODES = 3  # of a cluster

_LIMITS = {  # figure → what limits it, according to profiles (perf, py-spy) and other runs
    "keep-alive-rate": "the client: wrk uses 98 % of its core with either server",
    "half-rate-p99": "stalls of the machine: the p99 of one run is up to twice that of the next. A new keep-alive "
    "connection costs us 60 µs of CPU, and nginx 32",
    "fleet-cpu": "few polls are answered per turn of the event loop, and the service stores when each VM has polled",
    "mixed-rate": "changes: 3.6 ms of CPU for one alone, 1.6 ms right after another",
    "long-poll-alone": "one core, which answers one by one: 70 % of a response is `send` in the kernel",
    "approval-rate": "CPU, not the disk: 57 % is Python, 18 % the kernel (`fdatasync` 3), 13 % SQLite",
}

_CLUSTER_LIMITS = {  # the same for the rows of a cluster, all of whose parts shared two busy cores
    "nodes-shown": "99 nodes share a process, and all parts share two cores. At a load of 17 the p99 was 16.4 ms",
    "nodes-shown-overhead": "commit, encoding for ten hosts and decoding, which plain messages do not have",
    "cluster-approval-rate": "CPU of the active node, most of it Python on one core",
}


def scale_markdown(result: Result, cluster: Result) -> str:
    """Return the estimate for ten million VMs: bench/scale.md with the figures of a result, and of a cluster's."""
    values = {**_machine(result), **_sums(_Figures(result)), **_cluster_run(cluster), **_cluster(_Figures(cluster))}
    return _SCALE.read_text(encoding="utf-8").format(**values)


def limits_markdown(result: Result, cluster: Result) -> str:
    """Return the page about the limits of one machine: bench/limits.md with the figures of both results."""
    limits = [_limits(_Figures(result), _LIMITS), _limits(_Figures(cluster), _CLUSTER_LIMITS)]
    return _LIMITS_PAGE.read_text(encoding="utf-8").format(limits="\n".join(limits))


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

    def last(self, name: str, of: str) -> float:
        return self.figure(name).samples[of][-1]


def _limits(figures: _Figures, reasons: dict[str, str]) -> str:
    rows = ((figures.figure(name), reason) for name, reason in reasons.items())
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
        "vms_per_host": _VMS_PER_HOST,
        "hosts": _VMS / _VMS_PER_HOST,
        "month": _MONTH_S,
        "third": third,
        "usual": _VMS * _COMMITS / _MONTH_S,
        "bad": bad,
        "polls_per_commit": _VMS / bad,
        "pg_share": bad / _POSTGRES,
        "times_record": _VMS / _POSTGRES,
        "record_vms": _POSTGRES / bad * _VMS / 1e6,
    }


def _polling(figures: _Figures) -> dict[str, float | str]:
    poll_us, nginx_us = (figures.sample("keep-alive-cpu", of) for of in ("ours_us", "nginx_us"))
    connection_us, nginx_connection_us = (figures.sample("connection-cpu", of) for of in ("ours_us", "nginx_us"))
    fleet_us, nginx_fleet_us = (figures.sample("fleet-cpu", of) for of in ("ours_us", "nginx_us"))
    return {
        "fleet_us": fleet_us,
        "nginx_fleet_us": nginx_fleet_us,
        "poll_us": poll_us,
        "nginx_us": nginx_us,
        "connection_us": connection_us,
        "nginx_connection_us": nginx_connection_us,
        "cores_fleet": _VMS * fleet_us / 1e6,
        "poll_share": _VMS_PER_HOST * fleet_us / 1e6,
        "nodes_keep": nodes_for(poll_us),
        "connection_factor": connection_us / poll_us,
    }


def _rest(figures: _Figures) -> dict[str, float | str]:
    idle_kib, waiting_kib = figures.value("idle-memory"), figures.value("waiting-memory")
    return {
        "idle_kib": idle_kib,
        "waiting_kib": waiting_kib,
        "host_connections_kib": _VMS_PER_HOST * idle_kib,
        "host_waiting_kib": _VMS_PER_HOST * waiting_kib,
        "rollout_ms": figures.last("rollout-time", "cpu_ms_per_vm"),
        "approvals": figures.sample("approval-rate", "approvals_per_s"),
    }


def _cluster_run(result: Result) -> dict[str, float | str]:
    return {f"cluster_{name}": value for name, value in _machine(result).items()}


def _cluster(figures: _Figures) -> dict[str, float | str]:
    """The figures of a cluster, and what follows from them for clusters of as many hosts as were measured."""
    clusters = math.ceil(_VMS / _VMS_PER_HOST / HOSTS)
    cell_changes = _VMS // 3 * _COMMITS / _BAD_DAY_S / clusters
    active_us = figures.sample("nodes-shown", "active_cpu_us")
    active_share = active_us * CHANGES_PER_S / 1e6
    approvals = figures.sample("cluster-approval-rate", "approvals_per_s")
    return {
        "listeners": HOSTS,
        "changes_per_s": CHANGES_PER_S,
        "cluster_vms": HOSTS * _VMS_PER_HOST,
        "clusters": clusters,
        "control_nodes": clusters * _CONTROL_NODES,
        "cell_changes": cell_changes,
        "active_us": active_us,
        "active_share": active_share,
        "per_host_ms": active_share * 1e3 / HOSTS,
        "hosts_per_core": HOSTS / active_share,
        "node_changes": CHANGES_PER_S * HOSTS_PER_CHANGE / HOSTS,
        "node_share": figures.sample("nodes-shown", "real_cpu_us") * CHANGES_PER_S / 1e6 / REAL_NODES,
        "heartbeats": round(HOSTS / HEARTBEAT_INTERVAL_S),
        "caught_up": figures.value("nodes-caught-up"),
        "cluster_approvals": approvals,
        "cluster_share": figures.value("cluster-approval-rate"),
        "approval_margin": approvals / cell_changes,
        "failover": figures.value("failover-time"),
        "switch": figures.value("switch-time"),
        "standby": figures.value("standby-ready"),
    }


def cores_for(poll_us: float) -> float:
    """Return how many half-loaded cores serve one poll a second of every VM."""
    return _VMS * poll_us / 1e6 / _LOADED


def nodes_for(poll_us: float) -> int:
    """Return how many nodes of 16 cores that is, with a tenth spare."""
    return math.ceil(cores_for(poll_us) / _CORES * _SPARE)


if __name__ == "__main__":
    reference = read_result(REFERENCE)
    of_cluster = read_result(CLUSTER)
    (_OUT / "scale.md").write_text(scale_markdown(reference, of_cluster), encoding="utf-8")
    (_OUT / "limits.md").write_text(limits_markdown(reference, of_cluster), encoding="utf-8")
