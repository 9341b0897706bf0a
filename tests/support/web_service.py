"""The real service with its web console over TLS, and the environment of programs that call it.

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

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"  # the one of fleet files that name none
LAB_STEP_S = 60.0  # of lab time: longer than most acts take
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
# Clients look for newer versions of themselves: over TLS nothing but this machine is to be reached.
_UNREACHABLE_PROXY = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "localhost,127.0.0.1"}


@dataclass(frozen=True)
class WebService:
    service: ServiceProcess

    @cached_property
    def console_info(self) -> dict[str, str]:
        """What the service says of its console."""
        shown: dict[str, str] = self.service.api("GET", "/service").json["console"]
        return shown

    @property
    def base_url(self) -> str:
        return self.console_info["url"]

    @property
    def admin_credentials(self) -> tuple[str, str]:
        """The id and the secret of the client that may do everything."""
        return self.console_info["client_id"], Path(self.console_info["admin_secret"]).read_text(
            encoding="utf-8"
        ).strip()

    @property
    def trusting_environment(self) -> dict[str, str]:
        """The variables of a shell that trusts the console's certificate, and in which nobody has signed in."""
        return (
            _clean_environment()
            | dict.fromkeys(_CA_VARIABLES, self.console_info["ca"])
            | {"AZURE_CORE_COLLECT_TELEMETRY": "0"}
        )

    def environment(self, *words: str) -> dict[str, str]:
        """The variables of a shell that did what `forewarn env WORDS` says."""
        said = self.service.forewarn("env", *words)
        assert said.returncode == 0, said.stderr
        line = ["sh", "-c", f"{said.stdout}\nenv -0"]
        told = subprocess.run(
            line, capture_output=True, text=True, check=True, timeout=30, env=_clean_environment()
        ).stdout
        return dict(variable.split("=", 1) for variable in told.split("\0") if variable)

    def new_client(self, role: str, over: str = "/") -> tuple[str, str]:
        """The id and the secret of a client that has this role."""
        made = self.service.api("POST", "/access/clients", {}).json
        self.grant(role, to=made["id"], over=over)
        return made["id"], made["secret"]

    def grant(self, role: str, *, to: str, over: str) -> None:
        answer = self.service.api("POST", "/access/grants", {"role": role, "to": to, "over": over})
        assert answer.status in (200, 201), answer.body

    def events(self, vm: str) -> list[dict[str, Any]]:
        """What this VM is told."""
        events: list[dict[str, Any]] = self.service.poll(vm)["Events"]
        return events

    def scheduled_event_ids(self, vm: str) -> list[str]:
        return [event["EventId"] for event in self.events(vm) if event["EventStatus"] == "Scheduled"]

    def approve_all(self, vm: str) -> list[str]:
        """As a program inside the VM does: everything that it is told of and that has not started."""
        ids = self.scheduled_event_ids(vm)
        if ids:
            answer = self.service.approve(vm, *ids)
            assert answer.status == 200, answer.body
        return ids

    def approve_until_over(self, vm: str, is_over: Callable[[], bool], within_s: float = 60.0) -> None:
        """Approve what comes and let lab time pass, until it is over."""

        def look() -> bool:
            self.approve_all(vm)
            self.service.advance(LAB_STEP_S)
            return is_over()

        eventually(look, within_s)


@contextmanager
def open_web_service(
    data: Path, *, fleet: str = "", arguments: tuple[str, ...] = (), **settings: str
) -> Iterator[WebService]:
    """A lab with a console on a port of its own; `settings` by their names."""
    port = free_port()
    environment = {f"FOREWARN_{name.upper()}": text for name, text in settings.items()}
    environment["FOREWARN_CONSOLE"] = f"127.0.0.1:{port}"
    with ServiceProcess(data=data, fleet=fleet, arguments=arguments, environment=environment) as service:
        eventually(lambda: _is_listening(port))
        yield WebService(service)


def _is_listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _clean_environment() -> dict[str, str]:
    """Without what whoever runs the tests may have set for such clients."""
    return {name: text for name, text in os.environ.items() if not _is_client_variable(name)} | _UNREACHABLE_PROXY


def _is_client_variable(name: str) -> bool:
    return name.startswith(("AZURE_", "ARM_", "FOREWARN_")) or name.upper() in (*_CA_VARIABLES, *_PROXY_VARIABLES)
