"""The agent: from the publication of an eviction to its first step running, and what it costs while nothing happens.

Against our service it holds a long poll. Polling is measured through a relay that hides the wish to be held, as
from a server that does not know it, which answers at once.
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
from bench.ground import Ground
from bench.process import CLIENT_CORE, cpu_s, on_core
from bench.statistic import median, percentile
from bench.subject import Subject, subject
from tests.support.external_server import ExternalServer
from tests.support.service_process import eventually

_TRIALS = 40
_REST_S = 30.0
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
run = ["sh", "-c", 'f="{noted}/$FOREWARN_EVENT_ID"; date +%s.%N > "$f.part" && mv "$f.part" "$f"']
budget = "20s"
"""


def measure(ground: Ground) -> tuple[Figure, ...]:
    with subject(ground.directory / "reaction", _FLEET) as service:
        at = service.seat("spot")
        with agent(ground, f"http://{at.address}:{at.port}", "held") as running:
            held = _trials(ground, service, running, "evictions, long poll", waits=1)
            used, memory = _at_rest(ground, running.daemon.pid)
            service.must_hold(1)
        with relay(at.address, at.port) as port, agent(ground, f"http://127.0.0.1:{port}", "polling") as running:
            polling = _trials(ground, service, running, "evictions, polling", waits=0)
    return (
        _figure("reaction-held", held),
        _figure("reaction-polling", polling),
        Figure(name="agent-memory", value=memory, note="resident, at rest"),
        Figure(name="agent-cpu", value=used, note="of one core, at rest, long poll"),
    )


def _figure(name: str, took_s: list[float]) -> Figure:
    ms = [1000 * took for took in took_s]
    note = f"median {median(ms):.0f}, p90 {percentile(ms, 0.9):.0f}, worst {max(ms):.0f} ms of {len(ms)}"
    return Figure(name=name, value=percentile(ms, 0.99), note=note, samples={"took_ms": tuple(ms)})


class Running:
    """An agent, and the folder where its step leaves the moment at which it ran."""

    def __init__(self, daemon: ExternalServer, noted: Path) -> None:
        self.daemon = daemon
        self.noted = noted


@contextmanager
def agent(ground: Ground, endpoint: str, name: str) -> Iterator[Running]:
    place = ground.directory / name
    noted = place / "noted"
    noted.mkdir(parents=True)
    file = place / "agent.toml"
    file.write_text(_FILE.format(endpoint=endpoint, state=place / "state", noted=noted), encoding="utf-8")
    line = [sys.executable, "-m", "forewarn.cli", "agent", "run", "--config", str(file)]
    with (
        on_core(CLIENT_CORE),
        ExternalServer(line, log=place / "log", is_up=lambda: (place / "state").exists()) as daemon,
    ):
        time.sleep(3)  # its first polls; nothing is measured before they are done
        yield Running(daemon, noted)


def _trials(ground: Ground, service: Subject, running: Running, what: str, waits: int) -> list[float]:
    """At moments that do not fall in with a poll of once a second; `waits`: long polls that are held before each."""
    moments = random.Random(1)
    return [
        _trial(service, running, moments.uniform(0.6, 1.6), waits)
        for _ in ground.track(what, range(3 if ground.is_quick else _TRIALS))
    ]


def _trial(service: Subject, running: Running, pause_s: float, waits: int) -> float:
    time.sleep(pause_s)
    service.must_hold(waits)
    (event,) = service.ask("POST", "/requests", {"ask": "evict", "vms": ["spot"]})["events"]
    written = running.noted / event["id"]
    eventually(written.exists, within_s=10)
    service.withdraw(event["id"])
    return reaction_s(float(event["published_at"]), float(written.read_text()))


def reaction_s(published_at: float, noted_at: float) -> float:
    """AssertionError if the step was there before the event, as where the two clocks differ."""
    assert noted_at > published_at, f"the step ran at {noted_at}, and the event was published at {published_at}"
    return noted_at - published_at


def _at_rest(ground: Ground, pid: int) -> tuple[float, float]:
    """CPU as per cent of one core, and resident memory in MiB."""
    time.sleep(2)
    seconds = 3.0 if ground.is_quick else _REST_S
    before = cpu_s(pid)
    time.sleep(seconds)
    used = 100 * (cpu_s(pid) - before) / seconds
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return used, resident / 1024


@contextmanager
def relay(host: str, port: int) -> Iterator[int]:
    """A port behind which the service never hears `Prefer`."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, port)) as there:
                back = threading.Thread(target=_pass_on, args=(there, self.request), daemon=True)
                back.start()
                _pass_on(self.request, there, hide=True)
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


def _pass_on(one: socket.socket, other: socket.socket, *, hide: bool = False) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data.replace(b"prefer:", b"xrefer:").replace(b"Prefer:", b"Xrefer:") if hide else data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass
