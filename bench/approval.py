"""Approvals by 64 clients at a time, each durable before it is answered, against single commits on the same disk.

Approved is one of two VMs on a host whose maintenance is for both: it then waits for the other, so that an approval is
all that is measured. The second figure approves restarts, which start at once; the lab's hypervisor makes each act
durable in a ledger of its own.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.crowd import Crowd, Guest, approval, play
from bench.figure import Figure
from bench.ground import Ground
from bench.process import CLIENT_CORE, on_core
from bench.statistic import median, ratio, spread
from bench.subject import Subject, single_vms, subject
from tests.support.service_process import eventually

_CLIENTS = 64
_PER_RUN = 800
_ROW_BYTES = 300


@dataclass(frozen=True, slots=True)
class Asked:
    """What there is to approve."""

    path: str  # where the API shows all of it
    events: dict[str, str]  # VM → its event
    starts: int  # how many events start when all these are approved


Prepare = Callable[[Subject, int], Asked]
Shown = Sequence[dict[str, Any]]  # events, as the API shows them


@dataclass(frozen=True, slots=True)
class Seen:
    rates: list[float] = field(default_factory=list)  # approvals a second
    singles: list[float] = field(default_factory=list)  # commits a second, one after the other

    def figure(self, name: str, what: str) -> Figure:
        rates = f"{median(self.rates):,.0f} and {median(self.singles):,.0f} a second"
        note = f"{what}; {rates}, single commits differ by {spread(self.singles):.0%}"
        samples = {"approvals_per_s": tuple(self.rates), "single_commits_per_s": tuple(self.singles)}
        return Figure(name=name, value=ratio(self.rates, self.singles), note=note, samples=samples)


def measure(ground: Ground) -> tuple[Figure, ...]:
    waiting = _seen(ground, "approvals that wait for another", 2, _updates)
    starting = _seen(ground, "approvals that start something", 1, _restarts)
    return (
        waiting.figure("approval-rate", f"{_CLIENTS} clients at a time; nothing starts"),
        starting.figure("approval-start-rate", "each starts an act, which is durable too"),
    )


def _seen(ground: Ground, what: str, vms_per_host: int, prepare: Prepare) -> Seen:
    count = ground.runs * _PER_RUN
    fleet = single_vms(count * vms_per_host, count)
    with subject(ground.directory / f"approval-{vms_per_host}", fleet) as service:
        asked = prepare(service, count)
        assert len(asked.events) == count, f"{len(asked.events)} events where {count} were wanted"
        seen = play(_story(ground, what, service, asked.events))
        service.kill()
        service.start()
        must_be_approved(asked.events.values(), _shown(service, asked))
        eventually(lambda: started_of(_shown(service, asked)) == asked.starts)
    return seen


def must_be_approved(wanted: Collection[str], shown: Shown) -> None:
    """AssertionError if the service that came back has forgotten an approval."""
    known = {event["id"] for event in shown if event["approved_at"] is not None}
    lost = len(set(wanted) - known)
    assert not lost, f"{lost} of {len(wanted)} approvals were forgotten"


def started_of(shown: Shown) -> int:
    return sum(event["started_at"] is not None for event in shown)


def _shown(service: Subject, asked: Asked) -> Shown:
    events: Shown = service.ask("GET", asked.path)["events"]
    return events


def _updates(service: Subject, hosts: int) -> Asked:
    """An update of every host; the event of one of its two VMs."""
    wish = {"impact": "update", "hosts": [f"host-{n}" for n in range(hosts)]}
    rollout_id = service.ask("POST", "/rollouts", wish)["id"]
    one_of_each: dict[str, tuple[str, str]] = {}
    for event in service.ask("GET", f"/rollouts/{rollout_id}")["events"]:
        one_of_each.setdefault(event["host"], (event["vms"][0], event["id"]))
    return Asked(f"/rollouts/{rollout_id}", dict(one_of_each.values()), starts=0)


def _restarts(service: Subject, vms: int) -> Asked:
    asked = service.ask("POST", "/requests", {"ask": "restart", "vms": [f"web-{n}" for n in range(vms)]})
    events = {event["vms"][0]: event["id"] for event in asked["events"]}
    return Asked(f"/requests/{asked['request']['id']}", events, starts=vms)


async def _story(ground: Ground, what: str, service: Subject, events: dict[str, str]) -> Seen:
    crowd, seen, ids = Crowd(), Seen(), list(events.values())
    await crowd.connect(service.seats(list(events)), len(events))
    for run in ground.track(f"{what}, and single commits in turn", range(ground.runs)):
        some = slice(run * _PER_RUN, (run + 1) * _PER_RUN)
        seen.rates.append(await _approve(crowd, crowd.guests[some], ids[some]))
        seen.singles.append(single_commits(ground.directory / f"{what}-{run}.db", ground.run_s / 2))
    crowd.close()
    return seen


async def _approve(crowd: Crowd, guests: Sequence[Guest], events: Sequence[str]) -> float:
    begin = time.perf_counter()
    done = await crowd.pool(((guest, approval(event)) for guest, event in zip(guests, events, strict=True)), _CLIENTS)
    return done / (time.perf_counter() - begin)


def single_commits(path: Path, seconds: float) -> float:
    """How many one-row transactions a second SQLite makes durable here, one after the other."""
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
    """Another one every time: SQLite writes nothing where nothing is new."""
    return b"%0*d" % (_ROW_BYTES, number)
