"""A client that asks at a fixed rate, whether it was answered or not: times count from when a request was due, so a
server that stalls pays for every request that would have come meanwhile.

wrk knows no rate, and h2load sends the requests of all its clients at the same instant and measures that queue. Here
they come at random (exponential gaps), as those of many VMs that know nothing of each other. Runs as a process:
python -m bench.pacer ADDRESS PORT TARGET RATE SECONDS
"""

from __future__ import annotations

import gc
import json
import random
import select
import socket
import subprocess
import sys
import time
from collections import deque

import msgspec

from bench.process import CLIENT_CORE
from bench.statistic import percentile

_CONNECTIONS = 256
_SEED = 4711


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """Times in microseconds."""

    answered: int
    p50_us: float
    p99_us: float
    late_share: float  # of requests that this client sent more than a millisecond after they were due


def paced(address: str, port: int, target: str, *, rate: float, seconds: float) -> Paced:
    """From a process of its own on the clients' core."""
    line = ["taskset", "-c", str(CLIENT_CORE), sys.executable, "-m", "bench.pacer"]
    line += [address, str(port), target, str(rate), str(seconds)]
    out = subprocess.run(line, capture_output=True, text=True, check=True, timeout=seconds + 60).stdout
    return msgspec.json.decode(out, type=Paced)


def due_times(rate: float, seconds: float) -> list[float]:
    """When requests are due, in seconds from the beginning."""
    chance, at, times = random.Random(_SEED), 0.0, []
    while (at := at + chance.expovariate(rate)) < seconds:
        times.append(at)
    return times


class Pacer:
    def __init__(self, address: str, port: int, target: str) -> None:
        self._raw = f"GET {target} HTTP/1.1\r\nHost: {address}\r\nMetadata: true\r\n\r\n".encode()
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._asked: dict[int, float] = {}
        self._free: deque[int] = deque()
        for _ in range(_CONNECTIONS):
            sock = socket.create_connection((address, port), timeout=5)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self._sockets[sock.fileno()] = sock
            self._poll.register(sock.fileno(), select.EPOLLIN)
            self._free.append(sock.fileno())

    def run(self, times: list[float]) -> tuple[list[float], int]:
        """How long each took, in seconds, and how many were sent late."""
        took: list[float] = []
        late, number, begin = 0, 0, time.perf_counter()
        while len(took) < len(times):
            now = time.perf_counter() - begin
            while number < len(times) and times[number] <= now and self._free:
                late += now - times[number] > 0.001
                self._send(times[number])
                number += 1
            for fd, _ in self._poll.poll(0):
                took.append(self._receive(fd, begin))
            if now > times[-1] + 30:
                raise TimeoutError(f"{len(times) - len(took)} of {len(times)} requests were not answered")
        return took, late

    def _send(self, due: float) -> None:
        fd = self._free.popleft()
        self._asked[fd] = due
        self._sockets[fd].send(self._raw)

    def _receive(self, fd: int, begin: float) -> float:
        # Answers are a few hundred bytes, which loopback delivers whole.
        data = self._sockets[fd].recv(65536)
        assert data.startswith(b"HTTP/1.1 200"), data[:200]
        self._free.append(fd)
        return time.perf_counter() - begin - self._asked.pop(fd)


def main(address: str, port: str, target: str, rate: str, seconds: str) -> None:
    pacer = Pacer(address, int(port), target)
    times = due_times(float(rate), float(seconds))
    pacer.run(due_times(float(rate), 0.5))
    gc.collect()
    gc.disable()  # its pauses would be taken for the server's
    took, late = pacer.run(times)
    report = Paced(
        answered=len(took),
        p50_us=percentile(took, 0.5) * 1e6,
        p99_us=percentile(took, 0.99) * 1e6,
        late_share=late / len(times),
    )
    print(json.dumps(msgspec.to_builtins(report)))


if __name__ == "__main__":
    main(*sys.argv[1:])
