"""Polls while the rest goes on: one request in a hundred approves an event, and ten times a second the very document
that is polled changes. Compared with the same polls undisturbed, in turn.

What is approved has been approved before and goes on for days, so that the changes are the ten that are meant: clients
do so that approve whatever is listed, at every poll. An approval that changes something is a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from bench.contest import Contender
from bench.figure import Figure
from bench.ground import Ground
from bench.process import CLIENT_CORE, on_core
from bench.statistic import median, ratio
from bench.subject import Subject, one_scope, subject
from bench.wrk import wrk
from forewarn.testing.process import eventually

_SCRIPT = Path(__file__).parent / "mixed.lua"
_CHANGES_PER_S = 10
_POLLS = 0.99
_SETTINGS = '[[simulate]]\nvm = "web-1"\nverb = "reboot"\nthen = "take"\nseconds = 600000\n'


def measure(ground: Ground) -> tuple[Figure, ...]:
    directory = ground.directory / "mixed"
    directory.mkdir()
    settings = directory / "settings.toml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    with subject(directory / "data", one_scope(5), ("--config", str(settings))) as service:
        pure, mixed = (Contender(service.pid, service.url("web-0")) for _ in range(2))
        approved = _lasting_event(service)
        wrk(pure.url, seconds=1)
        for _ in ground.track("polls, undisturbed and beside the rest in turn", range(ground.runs)):
            pure.run(lambda url: wrk(url, seconds=ground.run_s, script=_SCRIPT))
            with _changes(service):
                mixed.run(lambda url: wrk(url, seconds=ground.run_s, script=_SCRIPT, arguments=(approved,)))
    polls = [rate * _POLLS for rate in mixed.rates]
    samples = {"pure_per_s": tuple(pure.rates), "polls_per_s": tuple(polls)}
    samples |= {"pure_us": tuple(pure.costs), "mixed_us": tuple(mixed.costs)}
    note = f"{median(mixed.costs):.1f} and {median(pure.costs):.1f} µs of CPU per request"
    return (Figure(name="mixed-rate", value=ratio(polls, pure.rates), note=note, samples=samples),)


def _lasting_event(service: Subject) -> str:
    """An event that has started, and whose act takes days."""
    event_id = service.schedule("web-1")[0]
    assert service.approve("web-1", event_id).status == 200
    eventually(lambda: service.ask("GET", f"/events/{event_id}")["status"] == "started")
    return event_id


@contextmanager
def _changes(service: Subject) -> Iterator[None]:
    """Ten a second: an event is scheduled for the scope, then taken back."""
    stop = Event()
    thread = Thread(target=_change, args=(service, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _change(service: Subject, stop: Event) -> None:
    pending = ""
    with on_core(CLIENT_CORE):
        while not stop.wait(1 / _CHANGES_PER_S) or pending:
            if pending:
                service.withdraw(pending)
                pending = ""
            else:
                pending = service.schedule("web-2")[0]
