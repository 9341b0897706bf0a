"""The handler in bash, in a process of its own: the lab's time stands still while it is waited for."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.lab import Lab

HERE = Path(__file__).parent
NEEDED = [program for program in ("bash", "curl") if shutil.which(program) is None]

pytestmark = [
    pytest.mark.skipif(bool(NEEDED), reason=f"{' and '.join(NEEDED)} not installed"),
    pytest.mark.scheduled_events(vms=["web-0", "web-1"], availability_set="web"),
]


@contextmanager
def draining(lab: Lab, vm: str, command: str) -> Iterator[None]:
    environment = {**os.environ, **lab.vm(vm).environment, "POLL_S": "0.05"}
    line = ["bash", str(HERE / "drain.sh"), "bash", "-c", command]
    with subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL) as program:
        try:
            yield
        finally:
            program.kill()


def test_the_command_runs_before_the_approval(scheduled_events: Lab, tmp_path: Path) -> None:
    told = tmp_path / "told"
    event = scheduled_events.reboot("web-0")
    with draining(scheduled_events, "web-0", f'echo "$EVENT_KIND $EVENT_ID" >> {told}'):
        scheduled_events.wait_for(lambda: event.approved)
    assert event.approved_by == "web-0"
    assert told.read_text(encoding="utf-8") == f"Reboot {event.id}\n"


def test_of_two_events_only_its_own_is_approved(scheduled_events: Lab) -> None:
    theirs, own = scheduled_events.reboot("web-1"), scheduled_events.redeploy("web-0")
    with draining(scheduled_events, "web-0", "true"):
        scheduled_events.wait_for(lambda: own.approved)
    assert not theirs.approved


def test_a_command_that_fails_keeps_its_event_waiting(scheduled_events: Lab, tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    event = scheduled_events.reboot("web-0")
    with draining(scheduled_events, "web-0", f"echo >> {tried}; false"):
        scheduled_events.wait_for(lambda: tried.exists() and len(tried.read_bytes()) >= 2)
    assert not event.approved


def test_bad_answers_are_waited_out(scheduled_events: Lab) -> None:
    event = scheduled_events.reboot("web-0")
    faults = [scheduled_events.fault(kind, times=2) for kind in ("gone", "reset", "empty-body")]
    with draining(scheduled_events, "web-0", "true"):
        scheduled_events.wait_for(lambda: event.approved)
    assert [fault.touched for fault in faults] == [2, 2, 2]
