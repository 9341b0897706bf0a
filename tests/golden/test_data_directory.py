"""A data directory that an older version wrote is opened: everything is still there, goes on and comes to its end.

`write_data_directory.py` wrote the archive, and says from which commit. The service was killed with pending events of
every kind, a rollout under way, faults and a replay; the agent in the middle of its steps; the watcher while it handled
a change; the supervisor of a VM of namespaces after it had rebooted that VM.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.golden.harness import Masks, Service, check_golden, check_golden_json, environment, eventually
from tests.golden.write_data_directory import ARCHIVE, BOOT_ID, LATE_S, agent_line, watch_line, write_agent_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What the archive holds, as if this machine had not been booted since."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none
        archive.extractall(tmp_path)
    root = tmp_path / "root"
    then, now = json.loads((root / "manifest.json").read_text())["boot_id"], BOOT_ID.read_text().strip()
    for path in (root / "cursor.json", root / "agent/state/cursor.json", root / "agent/state/journal.db"):
        path.write_bytes(path.read_bytes().replace(then.encode(), now.encode()))
    write_agent_file(root / "agent")
    return root


@pytest.fixture
def service(root: Path) -> Iterator[Service]:
    """A service on the old directory, once the faults of the storm, which are over in real time, have ended."""
    with Service(root / "data") as running:
        eventually(lambda: running.good("GET", "/history?limit=1")["entries"][-1]["kind"] == "fault")
        yield running


def event_of(service: Service, vm: str, kind: str = "Reboot") -> Any:
    """The newest event of this kind that hits the VM."""
    events = service.good("GET", f"/events?all=true&vm={vm}&limit=100")["events"]
    return [event for event in events if event["kind"] == kind and vm in event["vms"]][-1]


def stored(service: Service) -> dict[str, Any]:
    """Everything that the API shows of the store."""
    calls = ("/clock", "/fleet", "/events?all=true&limit=1000", "/rollouts", "/replays", "/vm-supervisors", "/access")
    shown = {call.partition("?")[0].strip("/"): service.good("GET", call) for call in calls}
    faults = service.good("GET", "/faults")["faults"]  # those of the storm are over with it, in real time
    shown["faults"] = [fault for fault in faults if fault["kind"] in ("throttled", "short-notice")]
    hooks = service.good("GET", "/webhooks")["webhooks"]
    shown["webhooks"] = [
        {name: hook[name] for name in ("schema", "url", "resource", "created_by", "statuses")} for hook in hooks
    ]
    return shown


def told_since(service: Service, seq: int) -> list[str]:
    """The history without what belongs to real time: faults of the storm, and starts of the service."""
    entries = service.good("GET", f"/history?after={seq}&limit=1000")["entries"]
    entries = [entry for entry in entries if entry["kind"] not in ("fault", "service")]
    since = {entry["seq"]: datetime.fromisoformat(entry["at"]).timestamp() - 2_051_222_400 for entry in entries}
    return [f"{since[entry['seq']]:g} {entry['kind']} {entry['vm'] or entry['scope_id']}" for entry in entries]


def newest(service: Service) -> int:
    number: int = service.good("GET", "/history?limit=1")["entries"][-1]["seq"]
    return number


def test_everything_that_was_stored_is_shown_again(service: Service) -> None:
    check_golden_json("data/stored.json", service.masks().value(stored(service)))


def test_the_history_of_the_older_version_is_still_read(service: Service) -> None:
    entries = service.good("GET", "/history?after=0&limit=1000")["entries"]
    began = next(n for n, entry in enumerate(entries) if entry["request_id"])
    shown = [
        {name: entry[name] for name in ("seq", "at", "kind", "vm", "host", "actor")} for entry in entries[began:-1]
    ]
    check_golden_json("data/history.json", service.masks().value(shown))


def test_pending_events_and_the_rollout_go_on_and_finish(service: Service) -> None:
    before = newest(service)
    for _ in range(4):  # a rollout publishes an update domain when the one before is done
        service.advance(1800)
    assert service.good("GET", "/events")["events"] == []
    assert [rollout["progress"] for rollout in service.good("GET", "/rollouts")["rollouts"]] == ["completed"] * 2
    check_golden("data/afterwards.txt", "\n".join(told_since(service, before)) + "\n")
    service.advance(LATE_S)
    assert all(replay["outcome"] for replay in service.good("GET", "/replays")["replays"])


@pytest.mark.timeout(60)
def test_the_agent_goes_on_with_the_step_that_was_cut_off_and_repeats_no_other(service: Service, root: Path) -> None:
    (root / "agent/go").touch()
    log = root / "agent/log"
    assert log.read_text().split() == ["leave", "save"]
    line = agent_line(root / "agent", service.url("guarded"))
    with running(line) as agent:
        eventually(lambda: event_of(service, "guarded")["approved_by"] or agent.poll() is not None)
        assert log.read_text().split() == ["leave", "save", "save"]
        service.advance(120)
        eventually(lambda: len(log.read_text().split()) == 5 or agent.poll() is not None)
    assert log.read_text().split() == ["leave", "save", "save", "restore", "enter"]
    assert event_of(service, "guarded")["ending"] == "finished"


@pytest.mark.timeout(60)
def test_the_watcher_is_told_again_only_what_it_had_not_handled(service: Service, root: Path) -> None:
    with running(watch_line(service.url("watched"), root / "cursor.json"), typed=True) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        told = [watcher.stdout.readline()]
        for kind in ("Freeze", "Reboot"):
            service.good("POST", f"/events/{event_of(service, 'watched', kind)['id']}/approve")
            for passing_s in (0.001, 60):
                service.advance(passing_s)  # until the event has started, then until it is over
                watcher.stdin.write("handled\n")
                watcher.stdin.flush()
                told.append(watcher.stdout.readline())
    masks = Masks()
    check_golden("data/watcher.txt", "".join(masks.text(line) for line in told))


def test_the_journal_of_a_vm_of_namespaces_keeps_its_form(root: Path) -> None:
    masks = Masks()
    (place,) = (root / "data/vms").iterdir()
    shown = [masks.value(json.loads(line)) for line in (place / "journal.jsonl").read_text().splitlines()]
    kept = json.loads((place / "supervisor.json").read_text())
    check_golden_json("data/namespaces.json", {"journal": shown, "supervisor": sorted(kept), "vm": kept["vm"]})


@contextmanager
def running(line: list[str], *, typed: bool = False) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE if typed else subprocess.DEVNULL
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, env=environment()) as child:
        try:
            yield child
        finally:
            child.kill()
