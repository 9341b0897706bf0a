"""The handler in bash, in its own process: the lab's clock stands still while tests wait for it."""

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
MISSING = [program for program in ("bash", "curl") if shutil.which(program) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not installed"),
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
    log = tmp_path / "log"
    event = scheduled_events.reboot("web-0")
    with draining(scheduled_events, "web-0", f'echo "$EVENT_KIND $EVENT_ID" >> {log}'):
        scheduled_events.wait_for(lambda: event.approved)
    assert event.approved_by == "web-0"
    assert log.read_text(encoding="utf-8") == f"Reboot {event.id}\n"


def test_only_the_vms_own_event_is_approved(scheduled_events: Lab) -> None:
    other, own = scheduled_events.reboot("web-1"), scheduled_events.redeploy("web-0")
    with draining(scheduled_events, "web-0", "true"):
        scheduled_events.wait_for(lambda: own.approved)
    assert not other.approved


def test_an_event_whose_command_fails_is_not_approved(scheduled_events: Lab, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    event = scheduled_events.reboot("web-0")
    with draining(scheduled_events, "web-0", f"echo >> {attempts}; false"):
        scheduled_events.wait_for(lambda: attempts.exists() and len(attempts.read_bytes()) >= 2)
    assert not event.approved


def test_the_event_is_approved_after_bad_answers(scheduled_events: Lab) -> None:
    event = scheduled_events.reboot("web-0")
    faults = [scheduled_events.fault(kind, times=2) for kind in ("gone", "reset", "empty-body")]
    with draining(scheduled_events, "web-0", "true"):
        scheduled_events.wait_for(lambda: event.approved)
    assert [fault.applied for fault in faults] == [2, 2, 2]
