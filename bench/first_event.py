"""The first minutes of a new user: from `forewarn up --detach --wait-ready` to an event that a guest sees.

The commands are those of the wheel in a fresh environment, each a process of its own; the installation is not measured.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from urllib.request import Request, urlopen

from bench.figure import Figure
from bench.run_context import RunContext
from bench.sample_statistics import median
from bench.service import TARGET
from tests.support.service_process import free_port
from tests.support.wheel import build_distributions, install, run_clean, the_wheel

_STARTS = 5


def measure(context: RunContext) -> tuple[Figure, ...]:
    wheel = the_wheel(build_distributions(context.directory / "built"))
    forewarn = install(context.directory / "venv", f"{wheel}[server]") / "forewarn"
    times = range(1 if context.is_quick else _STARTS)
    took = [_first_event_s(forewarn, context.directory / f"lab-{n}") for n in context.track("new labs", times)]
    note = f"slowest {max(took):.1f} s, the first; installed before" if max(took) == took[0] else "installed before"
    return (Figure(name="first-event-time", value=median(took), note=note, samples={"took_s": tuple(took)}),)


def _first_event_s(forewarn: Path, data: Path) -> float:
    """Start a new lab, restart a VM, poll as that VM, and stop the lab; returns the seconds until the poll."""
    data.mkdir()
    settings = {"FOREWARN_DATA": str(data), "FOREWARN_PORT": str(free_port()), "FOREWARN_API": "127.0.0.1:0"}
    begin = time.perf_counter()
    started = run_clean(forewarn, "up", "--detach", "--wait-ready", "--json", cwd=data, **settings)
    try:
        endpoint = _answer(started)["endpoints"][0]
        (event,) = _answer(run_clean(forewarn, "restart", endpoint["vm"], "--json", cwd=data, **settings))["events"]
        with urlopen(Request(endpoint["url"] + TARGET, headers={"Metadata": "true"}), timeout=30) as answer:
            listed = [each["EventId"] for each in json.load(answer)["Events"]]
        took_s = time.perf_counter() - begin
        assert listed == [event["id"]], f"the guest sees {listed}, not {event['id']}"
    finally:
        run_clean(forewarn, "down", cwd=data, **settings)
    return took_s


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, str]]]:
    assert done.returncode == 0, done.stderr
    answer: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return answer
