"""A whole service with HTTPS, used as from another machine."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import ServiceProcess

FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"

[[hosts]]
name = "host-{n}"
count = 2

[[vms]]
name = "web-{n}"
count = 2

[[vms]]
name = "db-0"
resource_group = "back"
"""


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    data = Path(tempfile.mkdtemp(prefix="fw"))
    environment = {"FOREWARN_API": "127.0.0.1:0"}
    with ServiceProcess(data=data, fleet=FLEET, environment=environment) as running:
        yield running
    shutil.rmtree(data)


@pytest.fixture
def url(service: ServiceProcess) -> str:
    found: str = service.api("GET", "/service").json["api"]["url"]
    return found


@pytest.fixture
def owner(service: ServiceProcess, command: Any) -> Any:
    """The command on the service's machine, with this test's own profiles."""
    command.env["FOREWARN_DATA"] = str(service.data)
    return command


def sign_in(owner: Any, url: str, client_id: str, secret_file: Path) -> None:
    ca = owner.data / "ca.pem"
    owner.good("ca", "export", str(ca))
    arguments = ["--server", url, "--ca", str(ca), "--client-id", client_id, "--secret-file", str(secret_file)]
    owner.good("login", *arguments, "--profile", client_id)


def test_the_administrator_signs_in_remotely(owner: Any, service: ServiceProcess, url: str) -> None:
    sign_in(owner, url, "admin", service.data / "admin.secret")
    owner.env["FOREWARN_DATA"] = "/nowhere"
    owner.env["FOREWARN_PROFILE"] = "admin"
    me = owner.json("whoami")
    assert (me["service"], me["id"]) == (url, "client:admin")
    assert [(grant["role"], grant["resource"]) for grant in me["grants"]] == [("Administrator", "/")]
    event = owner.json("restart", "web-0")["events"][0]["id"]
    owner.good("approve", event)
    message = owner.good("history", "--event", event)
    assert "client admin" in message


def test_a_renewed_administrator_secret_replaces_the_old_file(owner: Any, service: ServiceProcess, url: str) -> None:
    file = service.data / "admin.secret"
    old = file.read_text()
    sign_in(owner, url, "admin", file)
    assert str(file) in owner.good("access", "client", "renew", "Admin")
    assert file.read_text() != old
    assert file.stat().st_mode & 0o777 == 0o600
    sign_in(owner, url, "admin", file)
    assert owner.json("whoami", "--profile", "admin")["id"] == "client:admin"


def test_a_client_can_do_only_what_was_granted(owner: Any, url: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    owner.good("access", "client", "add", "ci", "--secret-file", str(secret))
    sign_in(owner, url, "ci", secret)
    assert "role     none" in owner.good("whoami", "--profile", "ci")
    assert "has no role anywhere" in owner.refused("fleet", "show", "--profile", "ci")

    grant = owner.json("access", "grant", "Reader", "--to", "ci", "--over-group", "back")["id"]
    assert [vm["name"] for vm in owner.json("fleet", "show", "--profile", "ci")["vms"]] == ["db-0"]
    assert "does not have the right to operate over" in owner.refused("restart", "db-0", "--profile", "ci")
    assert "web-1" in owner.refused("fleet", "show", "web-1", "--profile", "ci")
    assert "administer" in owner.refused("access", "show", "--profile", "ci")
    assert owner.refused("clock", "advance", "1m", "--profile", "ci") == (
        "client ci does not have the right to run the platform over everything: "
        "ask an administrator for the role Platform (`forewarn access grant`)"
    )

    owner.good("access", "revoke", grant)
    assert "has no role anywhere" in owner.refused("events", "--profile", "ci")
    owner.good("access", "client", "renew", "ci")
    assert "could not sign in" in owner.refused("events", "--profile", "ci")
    owner.good("access", "client", "remove", "ci")
    assert "could not sign in" in owner.refused("events", "--profile", "ci")


def test_the_printed_environment_reaches_the_service(owner: Any, url: str) -> None:
    shown = owner.good("env")
    fetch = "import os, urllib.request as u; print(u.urlopen(os.environ['ARM_CLOUD_METADATA_URL']).status)"
    plain = {"PATH": os.environ["PATH"], "TEXT": shown, "no_proxy": "localhost", "CODE": fetch}
    line = ["bash", "-c", f'eval "$TEXT"; exec {sys.executable} -c "$CODE"']
    result = subprocess.run(line, env=plain, capture_output=True, text=True, timeout=60, check=False)
    assert (result.stdout, result.stderr) == ("200\n", "")
    assert f"{url}/metadata/endpoints-list" in shown


def test_ca_shows_the_names_of_the_service(owner: Any) -> None:
    assert owner.json("ca")["names"] == ["localhost", "127.0.0.1", "::1"]


def test_a_lab_in_a_terminal_shows_its_url_and_the_env_command(command: Any) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    terminal = {"FORCE_COLOR": "1", "PYTHONUNBUFFERED": "1", "FOREWARN_API": "127.0.0.1:0"}
    env = {**os.environ, "FOREWARN_DATA": str(command.data), **terminal}
    arguments = [sys.executable, "-m", "forewarn.cli", "up", "--port", str(port)]
    shown = ""
    with subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "Ctrl-C stops it" not in shown:
            shown += process.stdout.readline()
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == 0
    assert "https://localhost:" in shown
    assert 'eval "$(forewarn env)"' in shown
