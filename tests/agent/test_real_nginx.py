"""A real nginx with a file as health check: load balancers avoid the VM while it is not ready."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.agent.model import StepOutcome
from tests.support.external_server import ExternalServer, port_answers
from tests.support.reaction_harness import ReactionHarness
from tests.support.service_process import eventually, free_port

pytestmark = pytest.mark.real
DEBIAN = Path(__file__).parents[2] / ".venv-parts/debian"
NGINX, HAPROXY = DEBIAN / "usr/sbin/nginx", DEBIAN / "usr/sbin/haproxy"
LIBRARIES = {"LD_LIBRARY_PATH": str(DEBIAN / "usr/lib/x86_64-linux-gnu")}
WEB = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
user root root;
worker_processes 1;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;

    server {{
        listen 127.0.0.1:{web_0};
        location = /health {{ if (-f {folder}/draining) {{ return 503; }} return 200 "fit"; }}
        location / {{ return 200 "web-0"; }}
        location = /strict {{ if (-f {folder}/draining) {{ return 503; }} return 200 "web-0"; }}
    }}
    server {{
        listen 127.0.0.1:{web_1};
        location / {{ return 200 "web-1"; }}
    }}

    upstream passive {{
        server 127.0.0.1:{web_0} max_fails=1 fail_timeout=1s;
        server 127.0.0.1:{web_1};
    }}
    server {{
        listen 127.0.0.1:{front};
        location / {{ proxy_pass http://passive; proxy_next_upstream error timeout http_503; }}
    }}
}}
"""
BALANCER = """
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend shop
    bind 127.0.0.1:{balancer}
    default_backend web
backend web
    balance roundrobin
    option httpchk GET /health
    default-server check inter 50ms fall 1 rise 1
    server web-0 127.0.0.1:{web_0}
    server web-1 127.0.0.1:{web_1}
"""


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        first = free_port(4)
        self.ports = dict(zip(("web_0", "web_1", "front", "balancer"), range(first, first + 4), strict=True))

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text.format(folder=self.folder, **self.ports))
        return file

    @contextmanager
    def daemon(self, *command: str | Path, port: str) -> Iterator[None]:
        log = self.folder / f"{port}.log"
        with ExternalServer(command, log=log, is_up=lambda: port_answers(self.ports[port]), environment=LIBRARIES):
            yield

    def connect(self, port: str, path: str = "/") -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=10)
        connection.request("GET", path)
        return connection

    def answer(self, port: str, path: str = "/") -> str:
        connection = self.connect(port, path)
        try:
            with connection.getresponse() as response:
                return response.read().decode() if response.status == 200 else str(response.status)
        finally:
            connection.close()

    def answers(self, port: str, path: str = "/") -> set[str]:
        return {self.answer(port, path) for _ in range(6)}

    def readiness(self, **options: object) -> ReactionHarness:
        return ReactionHarness("readiness", {"file": str(self.folder / "draining"), **options}, self.folder / "case")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    for program in (NGINX, HAPROXY):
        if not program.exists():
            pytest.skip(f"{program.name} is not here: make test-real fetches it")
    site = Site(tmp_path)
    nginx = (NGINX, "-e", "stderr", "-p", tmp_path, "-c", site.write("nginx.conf", WEB))
    haproxy = (HAPROXY, "-db", "-f", site.write("haproxy.cfg", BALANCER))
    with site.daemon(*nginx, port="front"), site.daemon(*haproxy, port="balancer"):
        eventually(lambda: site.answers("balancer") == {"web-0", "web-1"})
        yield site


def test_a_failing_health_check_diverts_new_requests_and_existing_connections_finish(site: Site) -> None:
    async def scenario() -> None:
        connection = eventually(lambda: _connection_to(site, "web-0"))
        assert connection is not None
        readiness = site.readiness(notice="200ms", ports=[site.ports["web_0"]])
        doing = asyncio.create_task(readiness.do())
        await asyncio.to_thread(eventually, lambda: site.answers("balancer") == {"web-1"})
        assert site.answer("web_0", "/health") == "503"
        assert not doing.done()

        connection.close()
        assert await doing == StepOutcome(ok=True, text="not ready, and no connections are left")
        assert site.answers("balancer") == {"web-1"}

        assert (await readiness.undo()).ok
        await asyncio.to_thread(eventually, lambda: site.answers("balancer") == {"web-0", "web-1"})

    asyncio.run(scenario())


def _connection_to(site: Site, server: str) -> http.client.HTTPConnection | None:
    """A kept connection to this server through the load balancer; None if another server answered."""
    connection = site.connect("balancer")
    if connection.getresponse().read().decode() == server:
        return connection
    connection.close()
    return None


def test_an_nginx_load_balancer_passes_requests_to_the_other_server(site: Site) -> None:
    """Passive checks: nginx passes a request that got a 503 to the other server, and avoids the first."""
    readiness = site.readiness()
    assert asyncio.run(readiness.do()).ok
    assert site.answer("web_0", "/strict") == "503"
    assert site.answers("front", "/strict") == {"web-1"}
    assert asyncio.run(readiness.undo()).ok
    eventually(lambda: "web-0" in site.answers("front", "/strict"))
