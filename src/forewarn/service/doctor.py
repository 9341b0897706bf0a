"""Checks for `forewarn doctor`: Python, packages, data directory, database, network, workers, acts.

Each check says what it found and, if that is bad, what to do.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.base.clock import read_real_time
from forewarn.base.duration import duration_text
from forewarn.cluster.bus import Bus
from forewarn.cluster.node_roles import can_take_over
from forewarn.errors import ForewarnError
from forewarn.service.data_directory import files_of_earlier_service
from forewarn.service.settings import Settings
from forewarn.store.commit_mark import RENEWAL_NAME, find_lost_writes, mark_path, read_renewal
from forewarn.store.sqlite_file import connect_read_only, is_new_file
from forewarn.store.sqlite_file import read_revision as examine_file
from forewarn.web.dependencies import ControlNodeView
from forewarn.web.nodes import NodeView, nodes_view

_REQUIRED_PACKAGES = (
    "msgspec",
    "httptools",
    "httpx2",
    "starlette",
    "uvicorn",
    "sqlalchemy",
    "alembic",
    "click",
    "rich",
)
_MIN_FREE_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """The result of one check of `forewarn doctor`, good or bad."""

    name: str  # what was checked, such as "database"; of a cluster, also a control node with a problem
    ok: bool  # whether it found no problem
    text: str  # what was found, for people
    remedy: str = ""  # what to do; to be shown only if `ok` is False


def run_checks(settings: Settings, database: Path, *, is_running: bool = False) -> list[DoctorCheck]:
    """Check Python, packages, the data directory and the database; return good and bad results, in order.

    `database` is the path of the store's file, which need not exist. Blocks, while it reads the whole database, and
    changes nothing. `is_running`: the service calls it, which looked for lost writes when it opened its store. The last
    check, of loopback addresses, is for labs only. A file that cannot be read is a bad result, not an error.
    """
    return [
        *_check_python(),
        *_check_packages(),
        *_with_read_errors("data", settings.directory, _check_data_directory(settings.directory)),
        *_with_read_errors("database", database, _check_database(database)),
        *_with_read_errors("database", database, _check_lost_writes(database, is_running=is_running)),
        *_check_loopback(settings),
    ]


def worker_checks(workers: Sequence[Mapping[str, Any]]) -> Iterator[DoctorCheck]:
    """Yield one check: whether all workers of a running service are ready; nothing without workers."""
    if workers:
        ready = sum(bool(worker["ready"]) for worker in workers)
        text = f"{ready} of {len(workers)} workers answer VMs"
        yield DoctorCheck(
            name="workers",
            ok=ready == len(workers),
            text=text,
            remedy="read the service's log: it says why a worker is missing",
        )


def hypervisor_checks(
    settings: Settings, unanswered_s: Mapping[str, float], unreachable_hosts: Collection[str] = ()
) -> Iterator[DoctorCheck]:
    """Yield a good check that names the hypervisor, and bad ones for unanswered acts and silent hosts."""
    kind = settings.chosen_hypervisor
    yield DoctorCheck(name="hypervisor", ok=True, text=f"{kind}: {kind.description}")
    if unanswered_s:
        acts = "act" if len(unanswered_s) == 1 else "acts"
        longest = duration_text(max(unanswered_s.values()))
        yield DoctorCheck(
            name="hypervisor",
            ok=False,
            text=f"the hypervisor has not answered {len(unanswered_s)} {acts}, the oldest for {longest}",
            remedy="find the VMs with `forewarn events`, and check the hypervisor of their hosts",
        )
    for host in sorted(unreachable_hosts):
        yield DoctorCheck(
            name="host",
            ok=False,
            text=f"host {host} is unreachable: it does not answer the hypervisor, and acts on its VMs wait",
            remedy=f"check the host and its network; if it is certainly down, run `forewarn confirm-down {host}`",
        )


def _with_read_errors(name: str, path: Path, results: Iterator[DoctorCheck]) -> Iterator[DoctorCheck]:
    """Yield the results of a check; if it cannot read `path`, end with a bad result that says so."""
    try:
        yield from results
    except (OSError, sqlite3.Error) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        yield DoctorCheck(
            name=name,
            ok=False,
            text=f"{path} cannot be read: {why}",
            remedy="check its disk and its permissions, and run this as the user of the service",
        )


def _check_python() -> Iterator[DoctorCheck]:
    text = f"Python {sys.version.split()[0]}"
    yield DoctorCheck(name="python", ok=sys.version_info >= (3, 11), text=text, remedy="install Python 3.11 or newer")


def _check_packages() -> Iterator[DoctorCheck]:
    missing = [name for name in _REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    text = f"{', '.join(missing)} missing" if missing else "all required packages are installed"
    yield DoctorCheck(name="packages", ok=not missing, text=text, remedy="pip install 'forewarn[server]'")
    fast = importlib.util.find_spec("uvloop") is not None
    yield DoctorCheck(
        name="speed",
        ok=True,
        text="uvloop is used" if fast else "uvloop is not installed: the service works, but is slower",
    )


def _check_data_directory(path: Path) -> Iterator[DoctorCheck]:
    if not path.exists():
        yield DoctorCheck(name="data", ok=True, text=f"{path} does not exist yet: the first start creates it")
        return
    writable = os.access(path, os.W_OK | os.X_OK)
    text = f"{path} is {'writable' if writable else 'not writable'}"
    yield DoctorCheck(
        name="data",
        ok=writable,
        text=text,
        remedy="make the directory writable for this user, or name another with --data",
    )
    free = shutil.disk_usage(path).free
    remedy = "free some disk space: approvals fail with 503 while the disk is full"
    yield DoctorCheck(name="disk", ok=free >= _MIN_FREE_BYTES, text=f"{free // (1024 * 1024)} MiB free", remedy=remedy)
    private = not path.stat().st_mode & 0o077
    text = "only its owner can reach the service's socket" if private else f"other users can enter {path}"
    yield DoctorCheck(name="privacy", ok=private, text=text, remedy=f"chmod 700 {path}")


def _check_database(path: Path) -> Iterator[DoctorCheck]:
    if is_new_file(path):
        earlier = files_of_earlier_service(path.parent)
        state = "is empty" if path.exists() else "is missing"
        yield DoctorCheck(
            name="database",
            ok=not earlier,
            text=f"{path.name} {state} beside {', '.join(earlier)}"
            if earlier
            else "no database yet: the first start creates it",
            remedy="put it back, restore a backup with `forewarn restore FILE`, or start empty with --new-store",
        )
        return
    try:
        revision = examine_file(path)
        yield DoctorCheck(name="database", ok=True, text=f"{path.name} is intact, schema {revision}")
    except ForewarnError as error:
        yield DoctorCheck(
            name="database", ok=False, text=str(error), remedy="restore a backup with `forewarn restore FILE`"
        )


def _check_lost_writes(path: Path, *, is_running: bool) -> Iterator[DoctorCheck]:
    if not mark_path(path).exists() or is_new_file(path):
        return  # never opened, or a control node's copy of a record, whose losses the cluster's checks report
    lost = None if is_running else find_lost_writes(path)
    text = f"{lost}: the next start gives every scope a new epoch"
    if lost is None:
        with closing(connect_read_only(path)) as db:
            saved = db.execute("SELECT value FROM saved WHERE name = ?", (RENEWAL_NAME,)).fetchone()
        renewal = read_renewal(saved[0] if saved else None)
        if renewal is None or not renewal.is_recent_loss(read_real_time()):
            return
        text = f"{renewal.reason}: every scope has the new epoch {renewal.epoch}"
    yield DoctorCheck(
        name="database",
        ok=False,
        text=text,
        remedy="check the disk and what wrote to the data directory, and repeat recent requests that are missing",
    )


def _check_loopback(settings: Settings) -> Iterator[DoctorCheck]:
    if not settings.lab:
        return
    try:
        with socket.socket() as sock:
            sock.bind(("127.0.0.2", 0))
        yield DoctorCheck(name="loopback", ok=True, text="each VM of a lab can have its own loopback address")
    except OSError:
        text = "this machine has only one loopback address: each VM of a lab gets its own port"
        yield DoctorCheck(name="loopback", ok=True, text=text)


# Checks of `forewarn doctor` for a cluster: the other control nodes, clocks, the record and the bus.

_MAX_BEHIND = 1000  # groups of writes; a standby that lacks more needs seconds to take over

ExamineRecord = Callable[[str], Sequence[str]]  # returns what is wrong with the record at a URL; blocks


def record_problems(url: str) -> Sequence[str]:
    """Examine the record (PostgreSQL) at this URL; return what is wrong, as sentences. Blocks."""
    from forewarn.cluster.record_administration import examine_record

    return examine_record(url).problems


async def cluster_checks(
    node: ControlNodeView, store: str, bus: Bus | None, examine: ExamineRecord = record_problems
) -> list[DoctorCheck]:
    """Check the control nodes, the record (PostgreSQL) at the URL `store`, and the bus."""
    nodes = nodes_view(node).nodes
    checks = [*_check_nodes(node.name, nodes)]
    try:
        problems = await asyncio.to_thread(examine, store)
    except ForewarnError as error:
        problems = (str(error),)
    checks.append(
        DoctorCheck(
            name="record",
            ok=not problems,
            text="; ".join(problems) or "the record in PostgreSQL is complete, and its standby follows",
            remedy="`forewarn store check` says more; look at the servers of PostgreSQL",
        )
    )
    if bus is not None:
        found = bus.problem or ("NATS answers" if bus.is_connected else "NATS cannot be reached")
        checks.append(
            DoctorCheck(
                name="bus",
                ok=bus.is_connected and not bus.problem,
                text=found,
                remedy="start the NATS servers, and compare their permissions with those of `forewarn cluster init`",
            )
        )
    return checks


def _check_nodes(name: str, nodes: Sequence[NodeView]) -> Iterator[DoctorCheck]:
    for node in nodes:
        if node.problem:
            yield DoctorCheck(
                name=node.name, ok=False, text=node.problem, remedy="`forewarn node list` shows all nodes"
            )
    ready = [node for node in nodes if node.name != name and can_take_over(node.role, node.problem)]
    near = [node for node in ready if node.behind <= _MAX_BEHIND]
    if near:
        names = ", ".join(f"{node.name} ({node.behind} behind)" for node in near)
        yield DoctorCheck(name="standby", ok=True, text=f"can take over: {names}")
    else:
        text = "no other control node can take over"
        if ready:
            text += f": {ready[0].name} is {ready[0].behind} groups of writes behind"
        remedy = "start another control node, or wait until it has caught up"
        yield DoctorCheck(name="standby", ok=False, text=text, remedy=remedy)
