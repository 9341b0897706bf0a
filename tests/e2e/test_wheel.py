"""The wheel as users install it, in fresh environments."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from forewarn import __version__
from tests.support.service_process import ServiceProcess, eventually, free_port

ROOT = Path(__file__).parents[2]
INSTALL_S = 180
ASK = """
import asyncio, sys
from forewarn.client import AsyncClient, Client
client, other = Client(sys.argv[1]), AsyncClient(sys.argv[1])
print(client.events().incarnation, asyncio.run(other.mine()), client.name())
"""
WHAT_IS_BUILT = ["pyproject.toml", "README.md", "LICENSE"]


def run(*line: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with an environment that does not point to the source tree."""
    ours = ("PYTHONPATH", "FOREWARN_")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the source tree."""
    copy = tmp_path_factory.mktemp("source")
    for name in WHAT_IS_BUILT:
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    done = run(sys.executable, "-m", "build", "--wheel", "--outdir", copy / "dist", copy, cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (copy / "dist").glob("*.whl")
    return built


def installed(place: Path, requirement: str) -> Path:
    """The bin directory of a fresh environment with this requirement installed."""
    venv.create(place, with_pip=False)
    line = (sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--quiet", requirement)
    done = run(*line, cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "bin"


@contextmanager
def started(line: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    home = {"HOME": str(cwd), "PATH": os.environ["PATH"], "FOREWARN_CONSOLE": "127.0.0.1:0"}
    child = subprocess.Popen(line, cwd=cwd, env=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def document_at(port: int) -> object:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=15)) as connection:
        try:
            connection.request("GET", "/metadata/scheduledevents?api-version=2020-07-01", headers={"Metadata": "true"})
            return json.loads(connection.getresponse().read())
        except ConnectionRefusedError:
            return None


def test_the_wheel_with_the_server_extra_runs_a_lab(
    wheel: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It contains sample fleet and migrations, runs in an empty directory, and prints the VMs' endpoints."""
    programs = installed(tmp_path / "venv", f"{wheel}[server]")
    empty = tmp_path_factory.mktemp("home")
    assert run(programs / "forewarn", "--version", cwd=empty).stdout == f"forewarn {__version__}\n"

    port = free_port()
    with started([str(programs / "forewarn"), "up", "--port", str(port)], cwd=empty) as lab:
        document = eventually(lambda: document_at(port) or lab.poll() is not None)
        assert document == {"DocumentIncarnation": 1, "Events": []}
        data = empty / ".local" / "state" / "forewarn"
        shown = run(programs / "forewarn", "--data", data, "--json", "fleet", "show", cwd=empty)
        assert "web-0" in [vm["name"] for vm in json.loads(shown.stdout)["vms"]]
        lab.send_signal(signal.SIGTERM)
        banner, _ = lab.communicate(timeout=30)
        assert lab.returncode == 0
    assert f"forewarn {__version__}: the lab is up." in banner
    assert str(port) in banner
    assert [path.name for path in empty.iterdir()] == [".local"]


def test_the_wheel_alone_needs_no_dependency_and_its_command_names_the_missing_extra(
    wheel: Path, tmp_path: Path
) -> None:
    """The SDK has no dependency; the command names the extra to install."""
    programs = installed(tmp_path / "venv", str(wheel))
    imports = "import forewarn, forewarn.client, forewarn.protocol, forewarn.errors; print(forewarn.__version__)"
    done = run(programs / "python", "-W", "error", "-c", imports, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")
    (site,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"forewarn"}

    with ServiceProcess(data=tmp_path / "d") as service:
        done = run(programs / "python", "-W", "error", "-c", ASK, f"127.0.0.1:{service.port}", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 () web-0\n", "")

    for command in ([programs / "forewarn"], [programs / "python", "-m", "forewarn"]):
        done = run(*map(str, command), "up", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "pip install 'forewarn[agent]'" in done.stderr
        assert "'forewarn[server]'" in done.stderr
