"""The wheel and the sdist as users install them, in fresh environments."""

from __future__ import annotations

import json
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.service_process import ServiceProcess, free_port
from tests.support.wheel import ROOT, build_distributions, install, run_clean, the_wheel

ASK = """
import asyncio, sys
from forewarn.client import AsyncClient, Client
client, other = Client(sys.argv[1]), AsyncClient(sys.argv[1])
print(client.events().incarnation, asyncio.run(other.own_events()), client.name())
"""
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_distributions(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return the_wheel(dist)


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def version(wheel: Path) -> str:
    return str(metadata(wheel)["Version"])


def events_at(url: str) -> list[dict[str, object]]:
    with urlopen(Request(url + EVENTS, headers={"Metadata": "true"}), timeout=60) as answer:
        return list(json.load(answer)["Events"])


def test_the_wheel_has_what_an_index_shows(wheel: Path) -> None:
    about = metadata(wheel)
    assert (about["Name"], about["License-Expression"], about["Requires-Python"]) == ("forewarn", "MIT", ">=3.11")
    assert about["Description-Content-Type"] == "text/markdown"
    assert str(about.get_payload()).startswith("# forewarn")
    assert {"agent", "server"} <= set(about.get_all("Provides-Extra", []))
    assert "Typing :: Typed" in about.get_all("Classifier", [])
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "forewarn/py.typed" in names
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"forewarn"}


def test_the_sdist_has_the_version_of_its_wheel_and_everything_that_is_in_it(dist: Path, wheel: Path) -> None:
    """`build` makes the wheel from the sdist, so a file that the sdist lacks is missing in the wheel."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert {name.partition("/")[0] for name in archive.getnames()} == {f"forewarn-{version(wheel)}"}
    source = ROOT / "src"
    packaged = {
        str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and "__pycache__" not in str(path)
    }
    with zipfile.ZipFile(wheel) as archive:
        assert packaged <= set(archive.namelist())


def test_the_wheel_with_the_server_extra_runs_a_lab_in_which_a_guest_sees_its_first_event(
    wheel: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It contains sample fleet and migrations, runs in an empty directory, and prints the VMs' endpoints."""
    forewarn = install(tmp_path / "venv", f"{wheel}[server]") / "forewarn"
    empty = tmp_path_factory.mktemp("home")
    settings = {"HOME": str(empty), "XDG_STATE_HOME": "", "FOREWARN_PORT": str(free_port())}
    settings["FOREWARN_API"] = "127.0.0.1:0"
    assert run_clean(forewarn, "--version", cwd=empty).stdout == f"forewarn {version(wheel)}\n"

    started = run_clean(forewarn, "up", "--detach", "--wait-ready", "--json", cwd=empty, **settings)
    assert started.returncode == 0, started.stderr
    try:
        lab = json.loads(started.stdout)
        assert lab["version"] == version(wheel)
        assert lab["api"]["portal"].endswith("/portal/")
        vm, url = lab["endpoints"][0].values()
        assert (vm, events_at(url)) == ("web-0", [])
        requested = run_clean(forewarn, "restart", vm, "--json", cwd=empty, **settings)
        (event,) = json.loads(requested.stdout)["events"]
        assert [(each["EventId"], each["Resources"]) for each in events_at(url)] == [(event["id"], [vm])]
        shown = run_clean(forewarn, "status", cwd=empty, **settings).stdout
        assert f"forewarn {version(wheel)}: the lab is up." in shown
        assert url in shown
        status = json.loads(run_clean(forewarn, "status", "--json", cwd=empty, **settings).stdout)
        assert (status["pid"], status["counts"]["events"]) == (lab["pid"], 1)
        again = json.loads(run_clean(forewarn, "reset", "--yes", "--json", cwd=empty, **settings).stdout)["service"]
        assert (again["endpoints"], again["counts"]["events"], events_at(url)) == (lab["endpoints"], 0, [])
        run_clean(forewarn, "restart", vm, cwd=empty, **settings)
    finally:
        stopped = run_clean(forewarn, "down", cwd=empty, **settings)
    assert stopped.stdout.endswith("all data is kept, 1 event pending.\n")
    assert [path.name for path in empty.iterdir()] == [".local"]


def test_the_wheel_alone_needs_no_dependency_and_its_command_names_the_missing_extra(
    wheel: Path, tmp_path: Path
) -> None:
    """The SDK has no dependency; the command names the extra to install."""
    programs = install(tmp_path / "venv", str(wheel))
    imports = "import forewarn, forewarn.client, forewarn.protocol, forewarn.errors; print(forewarn.__version__)"
    done = run_clean(programs / "python", "-W", "error", "-c", imports, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version(wheel)}\n", "")
    (site,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"forewarn"}

    with ServiceProcess(data=tmp_path / "d") as service:
        done = run_clean(programs / "python", "-W", "error", "-c", ASK, f"127.0.0.1:{service.port}", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 () web-0\n", "")

    for command in ([programs / "forewarn"], [programs / "python", "-m", "forewarn"]):
        done = run_clean(*map(str, command), "up", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "pip install 'forewarn[agent]'" in done.stderr
        assert "'forewarn[server]'" in done.stderr
