"""The README's commands run in order and print the output that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.agent.config import parse_config as read_agents_file
from forewarn.core.fleetfile.reader import read_fleet_file
from tests.support.service_process import ServiceProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NORMAL = [
    (r"\b[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}\b", "ID"),
    (r"\b\w{3}, \d{2} \w{3} \d{4} \d{2}:\d{2}:\d{2} GMT", "DATE"),
    (r"\b\d{4}-\d{2}-\d{2} \d{2}:\d{2}(:\d{2})?", "TIME"),
    (r"\b\w{3} \d{1,2} \d{2}:\d{2}(:\d{2})?", "TIME"),
    (r"\b\d{2}:\d{2}:\d{2}\b", "TIME"),
    (r"less than a second|\b\d+ ?(seconds?|min|s|m|h|d|days?|hours?)\b( \d+ ?(min|s|m|h)\b)*", "SPAN"),
    (r"\(in SPAN\)|\(SPAN ago\)|SPAN ago", "WHEN"),
    (r"local user \w+", "local user"),
    (r" +", " "),
    (r"\s+$", ""),
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def steps() -> list[tuple[str, str]]:
    """Every command of the tour with its expected output."""
    found: list[tuple[str, str]] = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def normal(text: str) -> list[str]:
    """Lines without ids, times, durations and column widths, which differ from run to run."""
    lines = []
    for line in text.strip().splitlines():
        for pattern, name in NORMAL:
            line = re.sub(pattern, name, line)
        if line.strip():
            lines.append(line.strip())
    return lines


def test_the_tour_prints_what_the_readme_says(tmp_path: Path) -> None:
    assert len(steps()) > 10
    with ServiceProcess(data=tmp_path / "d") as service:
        here = {"FOREWARN_DATA": str(service.data), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environ = {**os.environ, **here, "NO_COLOR": "1", "COLUMNS": "120", "TZ": "UTC"}
        for command, expected in steps():
            ran = subprocess.run(
                ["bash", "-c", on_port(command, service.port)], capture_output=True, text=True, env=environ, timeout=60
            )
            assert ran.returncode == 0, f"$ {command}\n{ran.stdout}{ran.stderr}"
            assert normal(ran.stdout) == normal(on_port(expected, service.port)), f"$ {command}\n{ran.stdout}"


def on_port(text: str, port: int) -> str:
    return text.replace(":8254", f":{port}")


def test_the_python_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python")
    with ServiceProcess(data=tmp_path / "d") as service:
        service.api("POST", "/requests", {"ask": "restart", "vms": ["web-0"]})
        exec(on_port(example, service.port), {})  # noqa: S102
        assert capsys.readouterr().out.startswith("Reboot Scheduled ")
        service.advance(1)  # returns when everything due is done
        assert service.poll("web-0")["Events"][0]["EventStatus"] == "Started"


def test_the_fleet_file_in_the_readme_is_valid() -> None:
    fleet, _ = blocks("toml")
    assert len(read_fleet_file(fleet).vms) == 6


def test_the_production_service_of_the_readme_has_its_own_data_and_identifies_vms_by_declared_addresses() -> None:
    """The tour leaves a lab in the default directory, which a service refuses; a VM without address is unknown."""
    (command,) = re.findall(r"`(forewarn\s+serve [^`]*)`", README)
    assert "--data ./production" in command
    (address,) = re.findall(r'`address = "([^"]*)"`', README)
    fleet, _ = blocks("toml")
    vms = read_fleet_file(f'{fleet}address = "{address}"\n').vms
    assert [vm.address for vm in vms] == [f"10.0.0.{n}" for n in range(4, 10)]


def test_the_agent_file_in_the_readme_is_valid() -> None:
    _, agents = blocks("toml")
    assert set(read_agents_file(agents).steps) == {"leave", "save"}


def test_the_two_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (commands,) = blocks("sh")
    for target in re.findall(r"^make (\w+)", commands, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_every_link_of_the_readme_has_a_target() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
