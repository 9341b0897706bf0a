"""Control nodes and host nodes of a cluster as the portal shows them, and a check for their changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from forewarn.base.duration import duration_text
from forewarn.base.times import Timestamp, timestamp
from forewarn.control.directory import natural_sort_key
from forewarn.web.dependencies import Dependencies, HostNodeInfo
from forewarn.web.node_views import NodeView, nodes_view
from forewarn.web.views import BaseView

MAX_CLOCK_DIFFERENCE_S = 2.0  # with more, a control node does not take over
_SILENT_S = 5.0  # a host node that was not heard for longer is silent
_NOT_NOW_S = 3.0  # a control node that described itself longer ago is shown with the time since
_COARSE_AFTER_S = 10.0  # longer times are shown in steps of this, so that pages do not change all the time
_CHECK_INTERVAL_S = 2.0  # of real time


class HostNodeState(StrEnum):
    """Whether the node of a host answers, as the service knows. The values are JSON."""

    ANSWERING = "answering"
    SILENT = "silent"  # not heard for 5 s, although it did not leave
    STOPPED = "stopped"  # it was stopped in order
    ABSENT = "absent"  # none has joined for this host of the fleet since the active control node took over


class ControlNodeRow(BaseView, frozen=True, kw_only=True):
    """A control node as a row on the page of nodes. Field names are JSON keys."""

    name: str  # unique in the cluster
    role: str  # active, suspended, standby, starting or stopping; `silent` if it was not seen for 10 s
    url: str  # where the other nodes reach it
    version: str  # the version of forewarn
    term: int | None  # the number of its lease, if it is the active node; None: it is not, as far as known
    seen: str  # `now`, or how long ago it described itself, such as `20 s ago`
    behind: int  # how many groups of writes its copy of the data lacks; 0: none
    clock: str  # how its clock differs from PostgreSQL's, or by at most how much, for people; "": not known
    advice: str  # what is wrong, and what to do, in a sentence; "": nothing is


class HostNodeRow(BaseView, frozen=True, kw_only=True):
    """The node of one host of the fleet as a row on the page of nodes. Names are JSON keys."""

    host: str  # the name of the host
    state: str  # a HostNodeState: answering, silent, stopped or absent
    since: Timestamp | None  # when it was last heard if it is silent or stopped, in real time; else None
    version: str  # the version of forewarn; "": not known
    hypervisor: str  # its name; "": not known
    vms: int  # that it served when it reported last; 0 if it is absent
    term: int | None  # the lease term of the host stream that it follows; None: it has reported none
    position: int | None  # the last message of that stream that it has; None: it has reported none
    clock_ahead_s: float | None  # how far its clock is ahead of the active node's; None: it does not answer now
    waiting_acts: int  # acts that cannot go on without this node
    advice: str  # what is wrong, and what to do; "": nothing is


def control_node_rows(dependencies: Dependencies) -> tuple[ControlNodeRow, ...]:
    """Return the control nodes, sorted by name; () for a service without other control nodes."""
    node = dependencies.control_node
    if node is None:
        return ()
    view = nodes_view(node)
    versions = {row.name: row.version for row in view.nodes}
    return tuple(
        ControlNodeRow(
            name=row.name,
            role=row.role,
            url=row.url,
            version=row.version,
            term=view.term or None if row.name == view.active else None,
            seen="now" if row.last_seen_ago_s <= _NOT_NOW_S else f"{duration_text(_coarse(row.last_seen_ago_s))} ago",
            behind=row.behind,
            clock=_clock_text(row, node.clock_difference_s if row.name == node.name else None),
            advice=_control_advice(row, versions.get(view.active, row.version)),
        )
        for row in view.nodes
    )


def _coarse(seconds: float) -> float:
    return float(round(seconds if seconds < _COARSE_AFTER_S else seconds - seconds % _COARSE_AFTER_S))


def _clock_text(row: NodeView, difference_s: float | None) -> str:
    """A control node knows its own difference; of the others it knows whether they complain."""
    if difference_s is not None:
        return signed_seconds(difference_s)
    is_known = row.role != "silent" and not row.problem
    return f"within {MAX_CLOCK_DIFFERENCE_S:g} s" if is_known else ""


def signed_seconds(seconds: float) -> str:
    """Return a difference of clocks, rounded to tenths of a second, such as `+0.3 s`; `0 s` for none."""
    rounded = round(seconds, 1)
    return f"{rounded:+g} s" if rounded else "0 s"


def _control_advice(row: NodeView, active_version: str) -> str:
    if row.problem:
        return row.problem
    if row.version != active_version:
        return f"it runs another release than the active node ({active_version}): upgrade the older one"
    return ""


def host_node_rows(dependencies: Dependencies) -> tuple[HostNodeRow, ...]:
    """Return the nodes of all hosts, those with a problem first; () if the service has no bus."""
    if dependencies.host_nodes is None:
        return ()
    control = dependencies.control
    waiting = Counter(control.executor.progress.awaited_hosts().values())
    real_time = dependencies.real_time()
    rows = [_host_row(node, waiting[node["host"]], real_time) for node in dependencies.host_nodes()]
    joined = {row.host for row in rows}
    rows += [
        _absent_row(host.name, waiting[host.name]) for host in control.placement.hosts() if host.name not in joined
    ]
    order = [HostNodeState.SILENT, HostNodeState.ABSENT, HostNodeState.STOPPED, HostNodeState.ANSWERING]
    rows.sort(key=lambda row: (not row.advice, order.index(HostNodeState(row.state)), natural_sort_key(row.host)))
    return tuple(rows)


def _host_row(node: HostNodeInfo, waiting: int, real_time: float) -> HostNodeRow:
    state = HostNodeState.ANSWERING
    if node["left"]:
        state = HostNodeState.STOPPED
    elif node["silent_s"] > _SILENT_S:
        state = HostNodeState.SILENT
    ahead_s = round(node["clock_ahead_s"], 1) + 0.0
    return HostNodeRow(
        host=node["host"],
        state=state,
        since=timestamp(None if state is HostNodeState.ANSWERING else float(round(real_time - node["silent_s"]))),
        version=node["version"],
        hypervisor=node["hypervisor"],
        vms=node["vms"],
        term=node["term"],
        position=node["position"],
        clock_ahead_s=ahead_s if state is HostNodeState.ANSWERING else None,
        waiting_acts=waiting,
        advice=_host_advice(state, node["host"], ahead_s),
    )


def _absent_row(host: str, waiting: int) -> HostNodeRow:
    return HostNodeRow(
        host=host,
        state=HostNodeState.ABSENT,
        since=None,
        version="",
        hypervisor="",
        vms=0,
        term=None,
        position=None,
        clock_ahead_s=None,
        waiting_acts=waiting,
        advice=_host_advice(HostNodeState.ABSENT, host, 0.0),
    )


def _host_advice(state: HostNodeState, host: str, clock_ahead_s: float) -> str:
    match state:
        case HostNodeState.SILENT:
            return (
                f"If host {host} runs, look at the node's log there, and at the NATS servers between: the node goes on "
                "answering VMs for a while. If the host is down, mark it as failed."
            )
        case HostNodeState.STOPPED:
            return f"It was stopped: start it again on host {host}. Its VMs get no answer until then."
        case HostNodeState.ABSENT:
            return f"None has joined: start one with `forewarn node run --host {host}` on that host."
    if abs(clock_ahead_s) > MAX_CLOCK_DIFFERENCE_S:
        return f"Its clock differs by {abs(clock_ahead_s):g} s: let both machines synchronize their clocks."
    return ""


class NodeMonitor:
    """Calls `on_change` when what pages show of control nodes or host nodes has changed, while `run` runs."""

    def __init__(self, dependencies: Dependencies, on_change: Callable[[], None]) -> None:
        self._dependencies, self._notify = dependencies, on_change

    async def run(self) -> None:
        """Compare the nodes every 2 seconds of real time, until cancelled; call `on_change` after a change."""
        dependencies = self._dependencies
        if not dependencies.is_cluster:
            return
        before = self._read()
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            found = self._read()
            if found != before:
                before = found
                self._notify()

    def _read(self) -> tuple[object, ...]:
        return (*control_node_rows(self._dependencies), *host_node_rows(self._dependencies))
