"""The page of nodes: control nodes, host nodes, what is wrong with them, and the latest takeovers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from forewarn.base.duration import duration_text
from forewarn.base.times import Timestamp, timestamp
from forewarn.base.wording import first_names
from forewarn.control.directory import natural_sort_key
from forewarn.core.history import EntryKind
from forewarn.web.dependencies import Dependencies, HostNodeInfo
from forewarn.web.nodes import NodeView, nodes_view
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.filters import PageNumber, items_on_page, require_choice
from forewarn.web.portal.states import state_label
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView, HistoryEntryView

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
    if node["stopped"]:
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


_HOSTS_PER_PAGE = 50
_MAX_TAKEOVERS = 10
_MAX_ENTRIES_READ = 1_000  # of the history without a scope, to find them
_TAKEOVER_BEGINNINGS = ("control passed ", "control node ")  # of their sentences in the history


class NodesPageQuery(StrictBody, frozen=True, kw_only=True):
    """The query of the page of nodes: a search in names of hosts, a state, and a page number."""

    q: Annotated[str, Meta(max_length=200)] = ""  # searched in the names of hosts, ignoring case; "": all
    state: str = ""  # answering, silent, stopped or absent; "": all
    page: PageNumber = 1  # from 1


class NodesPage(BaseView, frozen=True, kw_only=True):
    """The page of nodes: control nodes, and one page of the host nodes that match. Names are JSON keys."""

    now: Timestamp
    is_cluster: bool  # False: the service runs alone on this machine
    has_bus: bool  # host nodes answer VMs and act; False: the service itself does
    active: str  # the active control node, as last read from the lease; "": none, or the service has no others
    term: int  # the term of its lease; 0: none is active, or the service has no others
    problems: tuple[str, ...]  # sentences about the whole cluster; each node has its own `advice`
    control: tuple[ControlNodeRow, ...]  # sorted by name
    counts: dict[str, int]  # of all host nodes, by HostNodeState, 0 included
    found: int  # host nodes that match
    q: str  # the search; this and `state` are those of the query
    state: str  # the chosen HostNodeState; "": all
    page: int  # its number
    pages: int  # how many there are; an export is one
    hosts: tuple[HostNodeRow, ...]  # those with a problem first
    takeovers: tuple[HistoryEntryView, ...]  # recent changes of the active control node, newest first, at most 10

    @property
    def total(self) -> int:
        """How many host nodes there are, counting hosts for which none has joined."""
        return sum(self.counts.values())

    def clock_text(self, host: HostNodeRow) -> str:
        """Return how far the clock of a host's node is ahead, such as `+0.3 s`, or `0 s`; "": not known."""
        return "" if host.clock_ahead_s is None else signed_seconds(host.clock_ahead_s)

    def table(self) -> ExportTable:
        """Return the CSV export: one row per host node of `hosts`; the columns are the fields of HostNodeRow."""
        columns = HostNodeRow.__struct_fields__
        return ExportTable(columns=columns, rows=[[getattr(host, name) for name in columns] for host in self.hosts])


async def show_nodes_page(context: PortalContext, call: HandlerCall, query: NodesPageQuery) -> NodesPage:
    """Show all control nodes, a page of the host nodes that match, 50 per page, and the latest takeovers."""
    labels = {str(state): state_label(state, "node") for state in HostNodeState}
    require_choice("state", query.state, labels, "a state of a host node")
    dependencies = context.dependencies
    control, hosts = control_node_rows(dependencies), host_node_rows(dependencies)
    text = query.q.strip().casefold()
    found = [host for host in hosts if text in host.host.casefold() and query.state in ("", host.state)]
    shown, pages = (found, 1) if call.for_export else items_on_page(found, query.page, _HOSTS_PER_PAGE)
    counted = Counter(host.state for host in hosts)
    node = dependencies.control_node
    return NodesPage(
        now=timestamp(context.now()),
        is_cluster=dependencies.is_cluster,
        has_bus=dependencies.host_nodes is not None,
        active=node.active_name if node else "",
        term=node.active_term if node else 0,
        problems=_problems(control, hosts),
        control=control,
        counts={str(state): counted[state] for state in HostNodeState},
        found=len(found),
        q=query.q,
        state=query.state,
        page=query.page,
        pages=pages,
        hosts=tuple(shown),
        takeovers=_takeovers(context) if dependencies.is_cluster else (),
    )


def _problems(control: tuple[ControlNodeRow, ...], hosts: tuple[HostNodeRow, ...]) -> tuple[str, ...]:
    problems = []
    suspended = [node.name for node in control if node.role == "suspended"]
    if suspended:
        problems.append(
            f"Control node {first_names(suspended)} is suspended: it changes nothing and begins no act until "
            "PostgreSQL and its standby answer."
        )
    if control and not any(node.role == "standby" and not node.advice for node in control):
        problems.append("No other control node can take over: start one, or repair those below.")
    missing = sum(host.state != HostNodeState.ANSWERING for host in hosts)
    if missing:
        waiting = sum(host.waiting_acts for host in hosts)
        problems.append(
            f"{missing} of {len(hosts)} host nodes do not answer."
            + (f" Acts that wait for them: {waiting}." if waiting else "")
        )
    return tuple(problems)


def _takeovers(context: PortalContext) -> tuple[HistoryEntryView, ...]:
    entries = context.store.history(scope_id="", limit=_MAX_ENTRIES_READ)
    found = [
        entry
        for entry in reversed(entries)
        if entry.kind is EntryKind.SERVICE and entry.text.startswith(_TAKEOVER_BEGINNINGS)
    ]
    return tuple(map(HistoryEntryView.from_entry, found[:_MAX_TAKEOVERS]))
