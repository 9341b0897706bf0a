"""The hook of libvirt, run as libvirt runs it: arguments, and the domain's XML on standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.service_process import ServiceProcess, eventually

HOOK = Path(__file__).parents[2] / "deploy" / "libvirt" / "qemu.d" / "forewarn"
XML = "<domain type='kvm'><name>web-0</name></domain>" * 5000  # more than a pipe holds
MIGRATE, START, ENDED = ("migrate", "begin", "-"), ("prepare", "begin", "-"), ("release", "end", "-")


class Hook:
    def __init__(self, folder: Path, sock: Path) -> None:
        self.folder, self.socket = folder, sock
        self.log = folder / "hook.log"

    def run(self, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
        given = {"socket": str(self.socket), "log": str(self.log), **settings}
        config = self.folder / "hook.toml"
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()))
        return subprocess.run(
            [sys.executable, str(HOOK), *arguments],
            input=XML,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "FOREWARN_LIBVIRT_HOOK": str(config)},
        )

    def logged(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def event(*, status: str = "started", vm: str = "web-0", ok: bool | None = None) -> dict[str, Any]:
    return {"status": status, "acts": [{"vm": vm, "ok": ok}] if status != "scheduled" else []}


class FakeService:
    """Answers GET /events for the VM web-0 with the events given, and 404 for other VMs."""

    def __init__(self, path: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self.status = 200
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                vm = parse_qs(urlsplit(self.path).query)["vm"][0]
                self.send_response(service.status if vm == "web-0" else 404)
                self.end_headers()
                self.wfile.write(json.dumps({"events": service.events}).encode())

            def address_string(self) -> str:
                return "hook"

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = UnixStreamServer(str(path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeService]:
    service = FakeService(tmp_path / "s.sock")
    yield service
    service.close()


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path, tmp_path / "s.sock")


@pytest.mark.parametrize("operation", [MIGRATE, START], ids=["migration", "start"])
@pytest.mark.parametrize(
    "events",
    [[], [event(status="scheduled")], [event(ok=True)], [event(vm="web-1")]],
    ids=["no event", "only scheduled", "act is over", "another VM's act"],
)
def test_an_unannounced_start_or_arrival_is_reported_or_refused(
    service: FakeService, hook: Hook, operation: tuple[str, str, str], events: list[dict[str, Any]]
) -> None:
    service.events = events
    reported = hook.run("web-0", *operation)
    assert (reported.returncode, reported.stdout, reported.stderr) == (0, "", "")
    assert "no started event of forewarn announces it: allowed" in hook.logged()
    refused = hook.run("web-0", *operation, mode="refuse")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "no started event of forewarn announces it: refused" in refused.stderr


@pytest.mark.parametrize("operation", [MIGRATE, START], ids=["migration", "start"])
def test_an_act_under_way_and_a_vm_outside_of_the_fleet_are_allowed_silently(
    service: FakeService, hook: Hook, operation: tuple[str, str, str]
) -> None:
    service.events = [event(status="scheduled"), event(vm="WEB-0")]
    assert hook.run("web-0", *operation, mode="refuse").returncode == 0
    assert hook.run("other", *operation, mode="refuse").returncode == 0
    assert hook.logged() == ""


def test_other_operations_are_not_checked(hook: Hook) -> None:
    for arguments in [("web-0", *ENDED), ("web-0", "started", "begin", "-"), ("web-0",)]:
        assert hook.run(*arguments, mode="refuse", when_unanswered="refuse").returncode == 0
    assert hook.logged() == ""


def test_a_service_that_does_not_answer_allows_everything_unless_configured_otherwise(hook: Hook) -> None:
    assert hook.run("web-0", *MIGRATE, mode="refuse").returncode == 0
    assert "does not answer" in hook.logged()
    refused = hook.run("web-0", *MIGRATE, when_unanswered="refuse")
    assert refused.returncode == 1
    assert "does not answer" in refused.stderr


def test_a_service_with_an_internal_error_counts_as_not_answering(service: FakeService, hook: Hook) -> None:
    service.status = 500
    assert hook.run("web-0", *MIGRATE, mode="refuse").returncode == 0
    assert "status 500: allowed" in hook.logged()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "deny"}, "mode is 'deny', not report or refuse"),
        ({"moode": "refuse"}, "has 'moode', which does not exist"),
        ({"timeout_s": "soon"}, "timeout_s is 'soon', which has the wrong type"),
    ],
    ids=["value", "name", "type"],
)
def test_wrong_settings_are_ignored_and_never_stop_a_vm(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    config = tmp_path / "hook.toml"
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    source = f"import runpy; print(runpy.run_path({str(HOOK)!r})['read_settings']({str(config)!r}))"
    answer = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert "'mode': 'report'" in answer
    assert said in answer


def test_the_real_service_announces_a_vm_while_its_act_is_under_way(tmp_path: Path) -> None:
    fleet = '[[hosts]]\nname = "h1"\n[[vms]]\nname = "web-0"\n'
    with ServiceProcess(data=tmp_path / "data", fleet=fleet) as service:
        hook = Hook(tmp_path, service.data / "forewarn.sock")
        assert hook.run("web-0", *START, mode="refuse").returncode == 1
        service.api("POST", "/requests", {"operation": "restart", "vms": ["web-0"]})
        assert hook.run("web-0", *START, mode="refuse").returncode == 1
        (listed,) = service.api("GET", "/events").json["events"]
        assert service.api("POST", f"/events/{listed['id']}/approve").status == 200
        started = service.api("GET", f"/events/{listed['id']}").json
        assert (started["status"], started["acts"][0]["ok"]) == ("started", None)
        assert hook.run("web-0", *START, mode="refuse").returncode == 0
        service.api("POST", "/clock/advance", {"by_s": 3600})
        eventually(lambda: service.api("GET", f"/events/{listed['id']}").json["status"] == "over")
        assert hook.run("web-0", *START, mode="refuse").returncode == 1
