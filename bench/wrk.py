"""Runs wrk, a load generator that sends as many requests as the server can answer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from bench.process import CLIENT_CORE

_REPORT = Path(__file__).parent / "report.lua"
CONNECTIONS = 64


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What wrk measured in one run."""

    requests: int
    duration_us: int
    bytes: int
    refused: int  # responses with a status of 400 or more
    broken: int  # socket errors and timeouts
    p50_us: int
    p99_us: int

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / (self.duration_us / 1e6)


def wrk(
    url: str,
    *,
    seconds: float,
    headers: tuple[str, ...] = (),
    connections: int = CONNECTIONS,
    script: Path = _REPORT,
    arguments: tuple[str, ...] = (),
) -> Load:
    """Load the URL from one thread on the clients' core. AssertionError if a response was not good."""
    line = ["taskset", "-c", str(CLIENT_CORE), "wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}"]
    line += ["-s", str(script), "-H", "Metadata: true"]
    for header in headers:
        line += ["-H", header]
    line += [url, "--", *arguments]
    out = subprocess.run(line, capture_output=True, text=True, check=True, timeout=seconds + 60).stdout
    load = read_report(out)
    assert load.requests > 0, f"{url} sent no response"
    assert not load.refused, f"{load.refused} of {load.requests} requests to {url} were refused"
    # Some versions of wrk count connections that are open at the end as broken.
    assert load.broken <= connections, f"{load.broken} of {load.requests} requests to {url} broke"
    return load


def read_report(out: str) -> Load:
    """Parse the JSON line that report.lua adds to the output of wrk."""
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            return msgspec.json.decode(line, type=Load)
    raise LookupError(f"wrk gave no report:\n{out}")
