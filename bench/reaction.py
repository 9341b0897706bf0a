"""The agent: the time from the publication of an eviction to its first step, and its cost while idle.

With our service the agent uses long polls. Polling is measured through a relay that removes the Prefer header, as
with a server that does not support long polls.
"""

from __future__ import annotations

import random
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figure import Figure
from bench.process import CLIENT_CORE, cpu_s, on_core
from bench.run_context import RunContext
from bench.sample_statistics import median, percentile
from bench.service import BenchService, running_service
from forewarn.base.times import parse_time
from tests.support.external_server import ExternalServer
from tests.support.service_process import eventually

_TRIALS = 40
_IDLE_S = 30.0
_FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 2\n\n[[vms]]\nname = "spot"\npriority = "Spot"\n'
_FILE = """
endpoint = "{endpoint}"
state = "{state}"
listen = ""

[[rules]]
kinds = ["Preempt"]
steps = ["note"]

[steps.note]
use = "command"
run = ["sh", "-c", 'f="{step_times}/$FOREWARN_EVENT_ID"; date +%s.%N > "$f.part" && mv "$f.part" "$f"']
budget = "20s"
"""


def measure(context: RunContext) -> tuple[Figure, ...]:
    with running_service(context.directory / "reaction", _FLEET) as service:
        at = service.endpoint_of("spot")
        with agent(context, f"http://{at.address}:{at.port}", "held") as running:
            held = _trials(context, service, running, "evictions, long poll", held=1)
            used, memory = _measure_idle(context, running.daemon.pid)
            service.check_held(1)
        with relay(at.address, at.port) as port, agent(context, f"http://127.0.0.1:{port}", "polling") as running:
            polling = _trials(context, service, running, "evictions, polling", held=0)
    return (
        _figure("reaction-held", held),
        _figure("reaction-polling", polling),
        Figure(name="agent-memory", value=memory, note="resident, idle"),
        Figure(name="agent-cpu", value=used, note="of one core, idle, long poll"),
    )


def _figure(name: str, took_s: list[float]) -> Figure:
    ms = [1000 * took for took in took_s]
    note = f"median {median(ms):.0f}, p90 {percentile(ms, 0.9):.0f}, worst {max(ms):.0f} ms of {len(ms)}"
    return Figure(name=name, value=percentile(ms, 0.99), note=note, samples={"took_ms": tuple(ms)})


class RunningAgent:
    """An agent process, and the directory where its step writes when it ran."""

    def __init__(self, daemon: ExternalServer, step_times: Path) -> None:
        self.daemon = daemon
        self.step_times = step_times


@contextmanager
def agent(context: RunContext, endpoint: str, name: str) -> Iterator[RunningAgent]:
    """Run an agent for this endpoint until the block ends."""
    directory = context.directory / name
    step_times = directory / "step_times"
    step_times.mkdir(parents=True)
    file = directory / "agent.toml"
    file.write_text(_FILE.format(endpoint=endpoint, state=directory / "state", step_times=step_times), encoding="utf-8")
    line = [sys.executable, "-m", "forewarn.cli", "agent", "run", "--config", str(file)]
    with (
        on_core(CLIENT_CORE),
        ExternalServer(line, log=directory / "log", is_up=lambda: (directory / "state").exists()) as daemon,
    ):
        time.sleep(3)  # until its first polls are done
        yield RunningAgent(daemon, step_times)


def _trials(
    context: RunContext, service: BenchService, running: RunningAgent, description: str, held: int
) -> list[float]:
    """Evict at random times, independent of a poll once a second; `held` long polls wait before each."""
    pauses = random.Random(1)
    return [
        _trial(service, running, pauses.uniform(0.6, 1.6), held)
        for _ in context.track(description, range(3 if context.is_quick else _TRIALS))
    ]


def _trial(service: BenchService, running: RunningAgent, pause_s: float, held: int) -> float:
    time.sleep(pause_s)
    service.check_held(held)
    (event,) = service.ask("POST", "/requests", {"operation": "evict", "vms": ["spot"]})["events"]
    written = running.step_times / event["id"]
    eventually(written.exists, within_s=10)
    service.withdraw(event["id"])
    return reaction_s(parse_time(event["published_at"]), float(written.read_text()))


def reaction_s(published_at: float, ran_at: float) -> float:
    """Return the seconds between the two. AssertionError if the step ran first, so the clocks differ."""
    assert ran_at > published_at, f"the step ran at {ran_at}, and the event was published at {published_at}"
    return ran_at - published_at


def _measure_idle(context: RunContext, pid: int) -> tuple[float, float]:
    """Return the CPU in percent of one core, and the resident memory in MiB."""
    time.sleep(2)
    seconds = 3.0 if context.is_quick else _IDLE_S
    before = cpu_s(pid)
    time.sleep(seconds)
    used = 100 * (cpu_s(pid) - before) / seconds
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return used, resident / 1024


@contextmanager
def relay(host: str, port: int) -> Iterator[int]:
    """Run a TCP relay to the service that hides the Prefer header; yields its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, port)) as upstream:
                back = threading.Thread(target=_forward, args=(upstream, self.request), daemon=True)
                back.start()
                _forward(self.request, upstream, hide_prefer=True)
                back.join(timeout=30)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


def _without_prefer(data: bytes) -> bytes:
    return data.replace(b"prefer:", b"xrefer:").replace(b"Prefer:", b"Xrefer:")


def _forward(source: socket.socket, target: socket.socket, *, hide_prefer: bool = False) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(
                data.replace(b"prefer:", b"xrefer:").replace(b"Prefer:", b"Xrefer:") if hide_prefer else data
            )
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass
