"""Writes `data/data-directory.tar.gz`: what a service, an agent, a watcher and a VM supervisor leave on disk.

The archive was written from commit a93f9aa1dd16. It is written once and kept: later versions must open it. It needs a
machine that allows namespaces: `python -m tests.golden.write_data_directory`.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.golden.harness import HERE, Service, environment, eventually

ARCHIVE = HERE / "data" / "data-directory.tar.gz"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"

[[hosts]]
name = "host-{n}"
count = 6

[[availability_sets]]
name = "db"
update_domains = 3

[[vms]]
name = "db-{n}"
count = 3
availability_set = "db"

[[vms]]
name = "web-{n}"
count = 6

[[vms]]
name = "guarded"

[[vms]]
name = "watched"

[[vms]]
name = "inside"

[[vms]]
name = "spot"
priority = "Spot"

[[scale_sets]]
name = "workers"
count = 2
terminate_notification = 5
"""
AGENT = """
state = "FOLDER/state"
listen = "LISTEN"

[steps.leave]
use = "command"
run = "echo leave >> FOLDER/log"
undo = "echo enter >> FOLDER/log"
budget = "1m"

[steps.save]
use = "command"
run = "echo save >> FOLDER/log; while test -e FOLDER/log -a ! -e FOLDER/go; do sleep 0.02; done"
undo = "echo restore >> FOLDER/log"
budget = "1m"
repeatable = true

[[rules]]
steps = ["leave", "save"]
approve = "when-done"
"""
WATCH = """
import sys
from forewarn.client import Client
for change in Client(sys.argv[1]).watch(cursor=sys.argv[2]):
    print(type(change).__name__, change.event.id, getattr(change, "outcome", ""), flush=True)
    if not sys.stdin.readline():
        break
"""
LATE_S = 3 * 86_400.0
RECORDING: dict[str, Any] = {"vm": "x", "api_version": "2020-07-01", "started_at": "2026-01-05T12:00:00Z"}
RECORDING["answers"] = [{"at_s": 0, "status": 500}, {"at_s": LATE_S, "status": 410}]


def agent_line(folder: Path, url: str) -> list[str]:
    return [
        *(sys.executable, "-m", "forewarn", "agent", "run"),
        *("--config", str(folder / "agent.toml"), "--endpoint", url),
    ]


def write_agent_file(folder: Path, listen: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = AGENT.replace("FOLDER", str(folder)).replace("LISTEN", listen)
    (folder / "agent.toml").write_text(text, encoding="utf-8")


def watch_line(url: str, cursor: Path) -> list[str]:
    return [sys.executable, "-c", WATCH, url, str(cursor)]


def write_history(service: Service) -> None:
    """Things that are over: a rollout's first update domain, a restart, a withdrawal, a failed host."""
    service.good("POST", "/rollouts", {"impact": "update", "scope": "db"})
    service.advance(950)
    done = service.ask("restart", "web-0")["events"][0]["id"]
    service.good("POST", f"/events/{done}/approve")
    service.advance(60)
    withdrawn = service.ask("redeploy", "web-0")["events"][0]["id"]
    service.good("POST", f"/events/{withdrawn}/withdraw", {"reason": "not today"})
    service.good("POST", "/fleet/hosts", {"name": "broken", "location": "westeurope"})
    service.good("POST", "/hosts/broken/fail")


def write_pending(service: Service) -> None:
    """Events of every kind that wait, and one that has started."""
    service.ask("restart", "web-1")
    service.ask("redeploy", "web-2")
    service.ask("evict", "spot")
    service.ask("delete", "workers_0")
    started = service.ask("restart", "web-3")["events"][0]["id"]
    service.good("POST", f"/events/{started}/approve")


def write_others(service: Service) -> None:
    """A replay, faults, a storm, a client with a role, and a webhook."""
    service.good("POST", "/replays", {"vm": "web-4", "recording": RECORDING})
    service.good("POST", "/faults", {"kind": "throttled", "vm": "web-5", "count": 2})
    service.good("POST", "/faults", {"kind": "short-notice", "vm": "web-5", "count": 1})
    service.good("POST", "/faults/storm", {"seed": 7, "duration_s": 60, "vms": ["web-5"]})
    service.good("POST", "/access/clients", {"id": "bot", "name": "A bot"})
    service.good("POST", "/access/grants", {"role": "Operator", "principal": "bot", "resource": "web-0"})
    service.good("POST", "/webhooks", {"url": "http://127.0.0.1:1/nobody", "schema": "cloudevents"})


def write_agent_state(service: Service, folder: Path) -> None:
    """An agent is killed while its second step runs; the first is done."""
    write_agent_file(folder)
    service.ask("restart", "guarded")
    line = agent_line(folder, service.url("guarded"))
    with subprocess.Popen(line, env=environment(), start_new_session=True) as agent:
        eventually(lambda: (folder / "log").exists() and "save" in (folder / "log").read_text())
        os.killpg(agent.pid, signal.SIGKILL)
    for path in (folder / "state").rglob("*.db"):
        with sqlite3.connect(path) as journal:
            journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        journal.close()


def write_cursor(service: Service, cursor: Path) -> None:
    """A watcher has handled the first change, and is killed while it handles the second."""
    service.ask("restart", "watched")
    line = watch_line(service.url("watched"), cursor)
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        assert watcher.stdout.readline().startswith("Scheduled")
        watcher.stdin.write("handled\n")
        watcher.stdin.flush()
        service.good("POST", "/rollouts", {"impact": "migrate", "scope": "watched"})
        assert watcher.stdout.readline().startswith("Scheduled")
        watcher.kill()


def write_vm_of_namespaces(service: Service) -> None:
    """The supervisor of a VM has rebooted it once, and is killed."""
    words = ["--data", str(service.data), "vm", "run", "inside", "--isolated", "--", "sleep", "600"]
    line = [sys.executable, "-m", "forewarn", *words]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, env=environment()) as supervisor:
        eventually(lambda: service.good("GET", "/vm-supervisors")["supervisors"])
        event_id = service.ask("restart", "inside")["events"][0]["id"]
        service.good("POST", f"/events/{event_id}/approve")
        eventually(lambda: _is_performed(service, event_id))
        supervisor.kill()
    eventually(lambda: not service.good("GET", "/vm-supervisors")["supervisors"])


def _is_performed(service: Service, event_id: str) -> bool:
    service.advance(1)
    return bool(service.good("GET", f"/events/{event_id}")["status"] == "over")


def main() -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=HERE).stdout
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="golden-"))) / "root"
        service = stack.enter_context(Service(root / "data", fleet=FLEET))
        service.stop_the_clock()
        write_history(service)
        write_vm_of_namespaces(service)
        write_others(service)
        write_agent_state(service, root / "agent")
        write_cursor(service, root / "cursor.json")
        write_pending(service)
        service.end(signal.SIGKILL)
        manifest = {"commit": commit.strip(), "boot_id": BOOT_ID.read_text().strip()}
        (root / "manifest.json").write_text(json.dumps(manifest) + "\n", encoding="utf-8")
        ARCHIVE.parent.mkdir(exist_ok=True)
        with tarfile.open(ARCHIVE, "w:gz") as archive:
            archive.add(root, "root", filter=_kept)
    print(f"wrote {ARCHIVE} ({ARCHIVE.stat().st_size} bytes) from {commit.strip()}")


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """No sockets, shared memory and lock files: these are made again."""
    if not (entry.isreg() or entry.isdir()) or entry.name.endswith(("-shm", "/lock", ".lock", ".log")):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


if __name__ == "__main__":
    main()
