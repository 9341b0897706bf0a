"""Polls while the rest goes on: one request in a hundred approves an event, and ten times a second the very document
that is polled changes. Compared with the same polls undisturbed, in turn.

What is approved has been approved before and goes on for days, so that the changes are the ten that are meant: clients
do so that approve whatever is listed, at every poll. An approval that changes something is a row of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from bench.contest import Contender, size_of
from bench.figure import Figure
from bench.ground import Ground
from bench.process import CLIENT_CORE, on_core
from bench.statistic import median, ratio
from bench.subject import Subject, one_scope, subject
from bench.wrk import wrk
from tests.support.service_process import HttpAnswer, eventually

_SCRIPT = Path(__file__).parent / "mixed.lua"
_CHANGES_PER_S = 10
_LEAST_PER_S = 9
_APPROVALS = 'forewarn_requests_total{of="approval",outcome="200"}'
_POLLS = 0.99
_SETTINGS = '[[simulate]]\nvm = "web-1"\nverb = "reboot"\nthen = "take"\nseconds = 600000\n'


def measure(ground: Ground) -> tuple[Figure, ...]:
    directory = ground.directory / "mixed"
    directory.mkdir()
    settings = directory / "settings.toml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    with subject(directory / "data", one_scope(5), ("--config", str(settings))) as service:
        approved, paces = _lasting_event(service), list[Pace]()
        pure = Contender(service.pid, service.url("web-0"), size_of(service.sample("web-0")))
        mixed = Contender(service.pid, pure.url)
        wrk(pure.url, seconds=1)
        for _ in ground.track("polls, undisturbed and beside the rest in turn", range(2 * ground.runs - 1)):
            pure.run(lambda url: wrk(url, seconds=ground.run_s, script=_SCRIPT))
            paces.append(_disturb(service, mixed, approved, ground.run_s))
    polls = [rate * _POLLS for rate in mixed.rates]
    samples = {"pure_per_s": tuple(pure.rates), "polls_per_s": tuple(polls)}
    samples |= {"pure_us": tuple(pure.costs), "mixed_us": tuple(mixed.costs)}
    samples |= {"changes_per_s": tuple(pace.per_s for pace in paces)}
    costs = f"{median(mixed.costs):.1f} and {median(pure.costs):.1f} µs of CPU per request"
    note = f"{costs}; {median(samples['changes_per_s']):.1f} changes a second"
    return (Figure(name="mixed-rate", value=ratio(polls, pure.rates), note=note, samples=samples),)


def _lasting_event(service: Subject) -> str:
    """An event that has started, and whose act takes days."""
    event_id = service.schedule("web-1")[0]
    assert service.approve("web-1", event_id).status == 200
    eventually(lambda: service.ask("GET", f"/events/{event_id}")["status"] == "started")
    return event_id


def _disturb(service: Subject, contender: Contender, approved: str, seconds: float) -> Pace:
    """A run beside the rest, and how fast that changed; AssertionError if there was no rest."""
    approvals, document = service.series(_APPROVALS), service.sample("web-0")
    with changes(service) as pace:
        seen = contender.run(lambda url: wrk(url, seconds=seconds, script=_SCRIPT, arguments=(approved,)))
    must_be_mixed(seen.requests, service.series(_APPROVALS) - approvals)
    pace.must_be_kept(incarnation(service.sample("web-0")) - incarnation(document))
    return pace


def must_be_mixed(requests: int, approvals: float) -> None:
    """AssertionError unless one in a hundred was an approval, and a good one."""
    assert 0.9 < approvals / requests / (1 - _POLLS) < 1.1, f"{approvals:.0f} of {requests} requests were approvals"


def incarnation(answer: HttpAnswer) -> int:
    """It grows with every change of the document."""
    return int(answer.json["DocumentIncarnation"])


@dataclass(slots=True)
class Pace:
    """How many changes were made, and in what time."""

    count: int = 0
    seconds: float = 0.0

    @property
    def per_s(self) -> float:
        return self.count / self.seconds

    def must_be_kept(self, seen: int) -> None:
        """AssertionError if there were too few, or fewer were seen in the document."""
        assert self.per_s >= _LEAST_PER_S, f"only {self.per_s:.1f} changes a second"
        assert seen >= self.count, f"only {seen} of {self.count} changes were seen in the document"


@contextmanager
def changes(service: Subject) -> Iterator[Pace]:
    """Ten a second until the block is left: an event is scheduled for the scope, then taken back. What stood in their
    way is raised then."""
    stop, pace = Event(), Pace()
    with ThreadPoolExecutor(1) as beside:
        making = beside.submit(_change, service, stop, pace)
        try:
            yield pace
        finally:
            stop.set()
    making.result()


def _change(service: Subject, stop: Event, pace: Pace) -> None:
    """Each at its own moment, however long the one before took."""
    pending, begin = "", time.perf_counter()
    with on_core(CLIENT_CORE):
        while not stop.wait(begin + (pace.count + 1) / _CHANGES_PER_S - time.perf_counter()) or pending:
            if pending:
                service.withdraw(pending)
                pending = ""
            else:
                pending = service.schedule("web-2")[0]
            pace.count += 1
    pace.seconds = time.perf_counter() - begin
