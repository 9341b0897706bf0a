"""Polls mixed with approvals and changes, compared with polls alone, in turn.

One request in a hundred is an approval, and the polled document changes ten times a second. The approvals repeat one
for an event that has started and takes days, so they change nothing: many clients approve every listed event at every
poll. Approvals that change something are a row of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from bench.comparison import MeasuredServer, response_size
from bench.figure import Figure
from bench.process import CLIENT_CORE, on_core
from bench.run_context import RunContext
from bench.sample_statistics import median, ratio
from bench.service import BenchService, one_scope, running_service
from bench.wrk import wrk
from tests.support.service_process import HttpAnswer, eventually

_SCRIPT = Path(__file__).parent / "mixed.lua"
_CHANGES_PER_S = 10
_MIN_PER_S = 9
_APPROVALS = 'forewarn_requests_total{route="approval",code="200"}'
_POLLS = 0.99  # share of all requests
_SETTINGS = '[[simulate]]\nvm = "web-1"\nverb = "reboot"\nthen = "take"\nseconds = 600000\n'


def measure(context: RunContext) -> tuple[Figure, ...]:
    directory = context.directory / "mixed"
    directory.mkdir()
    settings = directory / "settings.toml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    with running_service(directory / "data", one_scope(5), ("--config", str(settings))) as service:
        approved, change_rates = _start_long_event(service), list[ChangeRate]()
        pure = MeasuredServer(service.pid, service.url("web-0"), response_size(service.sample("web-0")))
        mixed = MeasuredServer(service.pid, pure.url)
        wrk(pure.url, seconds=1)
        for _ in context.track("polls alone and mixed in turn", range(2 * context.runs - 1)):
            pure.run(lambda url: wrk(url, seconds=context.run_s, script=_SCRIPT))
            change_rates.append(_run_mixed(service, mixed, approved, context.run_s))
    polls = [rate * _POLLS for rate in mixed.rates]
    samples = {"pure_per_s": tuple(pure.rates), "polls_per_s": tuple(polls)}
    samples |= {"pure_us": tuple(pure.costs), "mixed_us": tuple(mixed.costs)}
    samples |= {"changes_per_s": tuple(change_rate.per_s for change_rate in change_rates)}
    costs = f"{median(mixed.costs):.1f} and {median(pure.costs):.1f} µs of CPU per request"
    note = f"{costs}; {median(samples['changes_per_s']):.1f} changes a second"
    return (Figure(name="mixed-rate", value=ratio(polls, pure.rates), note=note, samples=samples),)


def _start_long_event(service: BenchService) -> str:
    """Start an event whose act takes days; returns its id."""
    event_id = service.schedule("web-1")[0]
    assert service.approve("web-1", event_id).status == 200
    eventually(lambda: service.ask("GET", f"/events/{event_id}")["status"] == "started")
    return event_id


def _run_mixed(service: BenchService, server: MeasuredServer, approved: str, seconds: float) -> ChangeRate:
    """Run the mixed load once. AssertionError if the approvals or changes are missing."""
    approvals, document = service.metric(_APPROVALS), service.sample("web-0")
    with changes(service) as change_rate:
        load = server.run(lambda url: wrk(url, seconds=seconds, script=_SCRIPT, arguments=(approved,)))
    check_mix(load.requests, service.metric(_APPROVALS) - approvals)
    change_rate.check(incarnation(service.sample("web-0")) - incarnation(document))
    return change_rate


def check_mix(requests: int, approvals: float) -> None:
    """AssertionError unless one request in a hundred was an accepted approval."""
    assert 0.9 < approvals / requests / (1 - _POLLS) < 1.1, f"{approvals:.0f} of {requests} requests were approvals"


def incarnation(answer: HttpAnswer) -> int:
    """Return the incarnation of the document, which grows with every change."""
    return int(answer.json["DocumentIncarnation"])


@dataclass(slots=True)
class ChangeRate:
    """How many changes were made in which time."""

    count: int = 0
    seconds: float = 0.0

    @property
    def per_s(self) -> float:
        """Changes a second."""
        return self.count / self.seconds

    def check(self, published: int) -> None:
        """AssertionError if there were too few changes, or the document has changed less often."""
        assert self.per_s >= _MIN_PER_S, f"only {self.per_s:.1f} changes a second"
        assert published >= self.count, f"only {published} of {self.count} changes were published"


@contextmanager
def changes(service: BenchService) -> Iterator[ChangeRate]:
    """Make ten changes a second until the block ends: schedule an event, then withdraw it."""
    stop, change_rate = Event(), ChangeRate()
    with ThreadPoolExecutor(1) as executor:
        changing = executor.submit(_change, service, stop, change_rate)
        try:
            yield change_rate
        finally:
            stop.set()
    changing.result()


def _change(service: BenchService, stop: Event, change_rate: ChangeRate) -> None:
    """Make each change at its scheduled time, even if the one before was slow."""
    pending, begin = "", time.perf_counter()
    with on_core(CLIENT_CORE):
        while not stop.wait(begin + (change_rate.count + 1) / _CHANGES_PER_S - time.perf_counter()) or pending:
            if pending:
                service.withdraw(pending)
                pending = ""
            else:
                pending = service.schedule("web-2")[0]
            change_rate.count += 1
    change_rate.seconds = time.perf_counter() - begin
