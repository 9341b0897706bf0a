"""Durable approvals a second of 64 clients, compared with single commits on the same disk.

Each host has two VMs and only one approves, so no event starts and only the approval is measured. The second figure
approves restarts, which start at once; the lab's hypervisor makes each act durable in a ledger of its own.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.clients import Client, ClientPool, approval_request, run_clients
from bench.figure import Figure
from bench.process import CLIENT_CORE, on_core
from bench.run_context import RunContext
from bench.sample_statistics import median, ratio, spread
from bench.service import BenchService, running_service, single_vms
from tests.support.service_process import eventually

_CLIENTS = 64
_PER_RUN = 800
_ROW_BYTES = 300


@dataclass(frozen=True, slots=True)
class PendingApprovals:
    """The events to approve."""

    path: str  # where the API lists the events
    events: dict[str, str]  # VM → event id
    starts: int  # how many of them start when all are approved


Prepare = Callable[[BenchService, int], PendingApprovals]
EventList = Sequence[dict[str, Any]]  # as the API returns them


@dataclass(frozen=True, slots=True)
class ApprovalSamples:
    """The samples of all runs."""

    rates: list[float] = field(default_factory=list)  # approvals a second
    singles: list[float] = field(default_factory=list)  # single commits a second

    def figure(self, name: str, description: str) -> Figure:
        """Return the ratio of approvals to single commits."""
        rates = f"{median(self.rates):,.0f} and {median(self.singles):,.0f} a second"
        note = f"{description}; {rates}, single commits differ by {spread(self.singles):.0%}"
        samples = {"approvals_per_s": tuple(self.rates), "single_commits_per_s": tuple(self.singles)}
        return Figure(name=name, value=ratio(self.rates, self.singles), note=note, samples=samples)


def measure(context: RunContext) -> tuple[Figure, ...]:
    waiting = _measure(context, "approvals that wait for another", 2, _updates)
    starting = _measure(context, "approvals that start an event", 1, _restarts)
    return (
        waiting.figure("approval-rate", f"{_CLIENTS} clients at a time; nothing starts"),
        starting.figure("approval-start-rate", "each starts an act, which is durable too"),
    )


def _measure(context: RunContext, description: str, vms_per_host: int, prepare: Prepare) -> ApprovalSamples:
    count = context.runs * _PER_RUN
    fleet = single_vms(count * vms_per_host, count)
    with running_service(context.directory / f"approval-{vms_per_host}", fleet) as service:
        pending = prepare(service, count)
        assert len(pending.events) == count, f"{len(pending.events)} events, not {count}"
        samples = run_clients(_measure_clients(context, description, service, pending.events))
        service.kill()
        service.start()
        check_approved(pending.events.values(), _list_events(service, pending))
        eventually(lambda: count_started(_list_events(service, pending)) == pending.starts)
    return samples


def check_approved(event_ids: Collection[str], events: EventList) -> None:
    """AssertionError if the service has lost an approval in its restart."""
    known = {event["id"] for event in events if event["approved_at"] is not None}
    lost = len(set(event_ids) - known)
    assert not lost, f"{lost} of {len(event_ids)} approvals were lost"


def count_started(events: EventList) -> int:
    """Return how many of the events have started."""
    return sum(event["started_at"] is not None for event in events)


def _list_events(service: BenchService, pending: PendingApprovals) -> EventList:
    events: EventList = service.ask("GET", pending.path)["events"]
    return events


def _updates(service: BenchService, hosts: int) -> PendingApprovals:
    """Roll out an update of every host; returns the event of one of its two VMs."""
    body = {"impact": "update", "hosts": [f"host-{n}" for n in range(hosts)]}
    rollout_id = service.ask("POST", "/rollouts", body)["id"]
    one_of_each: dict[str, tuple[str, str]] = {}
    for event in service.ask("GET", f"/rollouts/{rollout_id}")["events"]:
        one_of_each.setdefault(event["host"], (event["vms"][0], event["id"]))
    return PendingApprovals(f"/rollouts/{rollout_id}", dict(one_of_each.values()), starts=0)


def _restarts(service: BenchService, vms: int) -> PendingApprovals:
    created = service.ask("POST", "/requests", {"ask": "restart", "vms": [f"web-{n}" for n in range(vms)]})
    events = {event["vms"][0]: event["id"] for event in created["events"]}
    return PendingApprovals(f"/requests/{created['request']['id']}", events, starts=vms)


async def _measure_clients(
    context: RunContext, description: str, service: BenchService, events: dict[str, str]
) -> ApprovalSamples:
    pool, samples, ids = ClientPool(), ApprovalSamples(), list(events.values())
    await pool.connect(service.endpoints(list(events)), len(events))
    for run in context.track(f"{description}, and single commits in turn", range(context.runs)):
        some = slice(run * _PER_RUN, (run + 1) * _PER_RUN)
        samples.rates.append(await _approve(pool, pool.clients[some], ids[some]))
        samples.singles.append(single_commits(context.directory / f"{description}-{run}.db", context.run_s / 2))
    pool.close()
    return samples


async def _approve(pool: ClientPool, clients: Sequence[Client], events: Sequence[str]) -> float:
    begin = time.perf_counter()
    done = await pool.send_limited(
        ((client, approval_request(event)) for client, event in zip(clients, events, strict=True)), _CLIENTS
    )
    return done / (time.perf_counter() - begin)


def single_commits(path: Path, seconds: float) -> float:
    """Return how many one-row transactions a second SQLite makes durable, one after the other."""
    with on_core(CLIENT_CORE):
        db = sqlite3.connect(path, isolation_level=None)
        db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t(id INTEGER PRIMARY KEY, b)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES (?, ?)", ((number, _row(0)) for number in range(1000)))
        db.execute("COMMIT")
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            db.execute("UPDATE t SET b = ? WHERE id = ?", (_row(count + 1), count % 1000))
            count += 1
        rate = count / (time.perf_counter() - begin)
        db.close()
    return rate


def _row(number: int) -> bytes:
    """A different row every time: SQLite does not write unchanged pages."""
    return b"%0*d" % (_ROW_BYTES, number)
