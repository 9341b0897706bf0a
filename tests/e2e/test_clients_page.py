"""The portal's clients page over real processes: it shows what handlers in VMs do."""

from __future__ import annotations

import json
import re
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import ServiceProcess, eventually, free_port

FLEET = '[[hosts]]\nname = "host-0"\n[[vms]]\nname = "web-{n}"\ncount = 3\n'
POLL = "/metadata/scheduledevents?api-version=2020-07-01"


class Portal:
    """A browser session that was opened with a link."""

    def __init__(self, service: ServiceProcess, console: int) -> None:
        self._base = f"http://localhost:{console}"
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        ).open
        link = re.search(r"http\S+", service.forewarn("portal").stdout)
        assert link is not None
        self._open(link[0], timeout=60).read()

    def clients(self, query: str = "") -> Any:
        with self._open(f"{self._base}/portal/clients?as=json{query}", timeout=60) as answer:
            return json.load(answer)

    def metrics(self) -> str:
        with self._open(f"{self._base}/metrics", timeout=60) as answer:
            return str(answer.read().decode())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_clients_page_shows_what_handlers_do(tmp_path: Path, workers: int) -> None:
    console = free_port()
    environment = {"FOREWARN_API": f"127.0.0.1:{console}"}
    arguments = ("--workers", str(workers))
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=arguments, environment=environment) as service:
        portal = Portal(service, console)
        for _ in range(4):
            service.guest("web-0", "GET", POLL, **{"User-Agent": "handler/1.0"})
        clients = {client["name"]: client for client in portal.clients()["clients"]}
        assert (clients["web-0"]["agent"], clients["web-0"]["polls"], clients["web-0"]["polling"]) == (
            "handler/1.0",
            4,
            "now",
        )
        assert (clients["web-1"]["agent"], clients["web-1"]["polling"]) == ("", "never")

        service.api("POST", "/requests", {"operation": "restart", "vms": ["web-0", "web-1"]})
        service.guest("web-0", "GET", POLL, **{"User-Agent": "handler/1.0"})
        page = portal.clients("&only=without-handler")
        assert page["without_handler_names"] == ["web-1"]
        assert [client["name"] for client in page["clients"]] == ["web-1"]
        given = next(client for client in portal.clients()["clients"] if client["name"] == "web-0")
        assert given["pending"]["delivery"] == "delivered"
        assert given["last_delivered_after_s"] is not None

        eventually(lambda: "forewarn_vms_without_handler 1.0" in portal.metrics())


def test_what_is_known_of_a_client_survives_a_kill(tmp_path: Path) -> None:
    console = free_port()
    environment = {"FOREWARN_API": f"127.0.0.1:{console}"}
    with ServiceProcess(data=tmp_path, fleet=FLEET, environment=environment) as service:
        service.guest("web-0", "GET", POLL, **{"User-Agent": "handler/1.0"})
        service.api("GET", "/fleet")  # stores the observed polls
        service.kill()
        service.start()
        [client] = [one for one in Portal(service, console).clients()["clients"] if one["name"] == "web-0"]
        assert (client["agent"], client["polls"], client["polling"], client["gap_s"]) == ("handler/1.0", 1, "now", None)
