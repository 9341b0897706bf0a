"""The page of nodes: control nodes, host nodes, what is wrong with them, and the latest takeovers."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from msgspec import Meta

from forewarn.base.times import Timestamp, timestamp
from forewarn.base.wording import first_names
from forewarn.core.history import EntryKind
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.filters import require_choice
from forewarn.web.portal.node_status import (
    ControlNodeRow,
    HostNodeRow,
    HostNodeState,
    control_node_rows,
    host_node_rows,
    signed_seconds,
)
from forewarn.web.portal.pagination import PageNumber, items_on_page
from forewarn.web.portal.states import state_label
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView, HistoryEntryView

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
