"""The real service with its API over TLS, and the environment of programs that call it.

with open_web_service(tmp_path, fleet=FLEET) as console:
    subprocess.run(["az", "vm", "restart", …], env=console.environment())
    console.approve_all("web-0")
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.service_process import ServiceProcess, eventually, free_port

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"  # of fleet files that name none
LAB_STEP_S = 60.0  # lab time; longer than most acts take
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
# Clients look for updates of themselves; TLS connections to other machines must fail.
_UNREACHABLE_PROXY = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "localhost,127.0.0.1"}


@dataclass(frozen=True)
class WebService:
    """A running service with HTTPS, and what clients need to call it."""

    service: ServiceProcess

    @cached_property
    def console_info(self) -> dict[str, str]:
        """The section `api` of the service's own description: URL, CA, client id and secret file."""
        info: dict[str, str] = self.service.api("GET", "/service").json["api"]
        return info

    @property
    def base_url(self) -> str:
        return self.console_info["url"]

    @property
    def admin_credentials(self) -> tuple[str, str]:
        """The id and the secret of the administrator."""
        return self.console_info["client_id"], Path(self.console_info["admin_secret"]).read_text(
            encoding="utf-8"
        ).strip()

    @property
    def trusting_environment(self) -> dict[str, str]:
        """The variables of a shell that trusts the service's certificate, without credentials."""
        return (
            _clean_environment()
            | dict.fromkeys(_CA_VARIABLES, self.console_info["ca"])
            | {"AZURE_CORE_COLLECT_TELEMETRY": "0"}
        )

    def environment(self, *arguments: str) -> dict[str, str]:
        """The variables of a shell that evaluated `forewarn env ARGUMENTS`."""
        result = self.service.forewarn("env", *arguments)
        assert result.returncode == 0, result.stderr
        line = ["sh", "-c", f"{result.stdout}\nenv -0"]
        output = subprocess.run(
            line, capture_output=True, text=True, check=True, timeout=60, env=_clean_environment()
        ).stdout
        return dict(variable.split("=", 1) for variable in output.split("\0") if variable)

    def new_client(self, role: str, over: str = "/") -> tuple[str, str]:
        """Create a client with this role; returns its id and secret."""
        created = self.service.api("POST", "/access/clients", {}).json
        self.grant(role, to=created["id"], over=over)
        return created["id"], created["secret"]

    def grant(self, role: str, *, to: str, over: str) -> None:
        answer = self.service.api("POST", "/access/grants", {"role": role, "principal": to, "resource": over})
        assert answer.status in (200, 201), answer.body

    def events(self, vm: str) -> list[dict[str, Any]]:
        """The events that this VM sees."""
        events: list[dict[str, Any]] = self.service.poll(vm)["Events"]
        return events

    def scheduled_event_ids(self, vm: str) -> list[str]:
        return [event["EventId"] for event in self.events(vm) if event["EventStatus"] == "Scheduled"]

    def approve_all(self, vm: str) -> list[str]:
        """Approve every event that this VM sees and that has not started; returns their ids."""
        ids = self.scheduled_event_ids(vm)
        if ids:
            answer = self.service.approve(vm, *ids)
            assert answer.status == 200, answer.body
        return ids

    def approve_until_over(self, vm: str, is_over: Callable[[], bool], within_s: float = 60.0) -> None:
        """Approve this VM's events and advance the clock, until `is_over`."""

        def step() -> bool:
            self.approve_all(vm)
            self.service.advance(LAB_STEP_S)
            return is_over()

        eventually(step, within_s)


@contextmanager
def open_web_service(
    data: Path, *, fleet: str = "", arguments: tuple[str, ...] = (), **settings: str
) -> Iterator[WebService]:
    """Run a lab with HTTPS on its own port; `settings` are by name, as in the settings file."""
    port = free_port()
    environment = {f"FOREWARN_{name.upper()}": text for name, text in settings.items()}
    environment["FOREWARN_API"] = f"127.0.0.1:{port}"
    with ServiceProcess(data=data, fleet=fleet, arguments=arguments, environment=environment) as service:
        eventually(lambda: _is_listening(port))
        yield WebService(service)


def _is_listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _clean_environment() -> dict[str, str]:
    """The environment without variables that configure such clients."""
    return {name: text for name, text in os.environ.items() if not _is_client_variable(name)} | _UNREACHABLE_PROXY


def _is_client_variable(name: str) -> bool:
    return name.startswith(("AZURE_", "ARM_", "FOREWARN_")) or name.upper() in (*_CA_VARIABLES, *_PROXY_VARIABLES)
