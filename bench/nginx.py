"""Runs nginx on the servers' core for comparison; it sends the same response as our service."""

from __future__ import annotations

import http.client
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.process import SERVER_CORE, on_core
from tests.support.service_process import HttpAnswer, free_port

_TEMPLATE = Path(__file__).parent / "nginx.conf"
_START_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nginx:
    """A running nginx."""

    pid: int
    url: str  # for keep-alive connections
    connection_url: str  # for a connection per poll


def configuration(answer: HttpAnswer, keep_alive: int, connection: int) -> str:
    """Return nginx.conf with these ports and the response of our service as a constant."""
    texts = {
        "@KEEP_ALIVE@": str(keep_alive),
        "@CONNECTION@": str(connection),
        "@ETAG@": answer.headers["ETag"],
        "@BODY@": answer.body.decode(),
    }
    conf = _TEMPLATE.read_text(encoding="utf-8")
    for name, text in texts.items():
        conf = conf.replace(name, text)
    return conf


@contextmanager
def nginx(directory: Path, answer: HttpAnswer, target: str) -> Iterator[Nginx]:
    """Run nginx until the block ends. AssertionError if its response differs from `answer`."""
    port = free_port(2)
    (directory / "temp").mkdir(parents=True)
    directory.chmod(0o755)
    path = directory / "nginx.conf"
    path.write_text(configuration(answer, port, port + 1), encoding="utf-8")
    with on_core(SERVER_CORE):
        child = subprocess.Popen(["nginx", "-p", str(directory), "-c", str(path), "-e", "stderr"])
    try:
        for number in (port, port + 1):
            _check_same_response(child, number, target, answer)
        base = "http://127.0.0.1"
        yield Nginx(pid=child.pid, url=f"{base}:{port}{target}", connection_url=f"{base}:{port + 1}{target}")
    finally:
        child.terminate()
        child.wait(timeout=30)


def _check_same_response(child: subprocess.Popen[bytes], port: int, target: str, ours: HttpAnswer) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            theirs = _ask(port, target)
            break
        except OSError:
            assert child.poll() is None, "nginx ended at once"
            assert time.monotonic() < deadline, "nginx did not start"
            time.sleep(0.02)
    assert theirs.body == ours.body
    for name in ("Content-Type", "ETag", "Content-Length"):
        assert theirs.headers[name] == ours.headers[name], f"nginx sends another {name}: {theirs.headers[name]}"


def _ask(port: int, target: str) -> HttpAnswer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        return HttpAnswer(response.status, response.read(), dict(response.getheaders()))
    finally:
        connection.close()
