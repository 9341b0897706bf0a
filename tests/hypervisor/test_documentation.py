"""The pages about hypervisors: their examples are accepted, and the commands do what the page says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from forewarn.control.executor import ActLimits, ActRetryPolicy
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.machines.command import CommandHypervisor, CommandSpec, command_input
from forewarn.machines.command_run import CommandRunJournal
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.process.hypervisor import ANSWER_TIMEOUT_S, RECONNECT_GRACE_S
from forewarn.service.settings import HypervisorKind, Settings, load_settings

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("reference/hypervisors.md", "how-to/commands.md")
PAGE = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)
NOW = 1_700_000_000.0
ACT = Act(id="E1:web-0", vm="s/g/web-0", name="web-0", verb=Verb.REBOOT, event_id="E1", duration_s=0)

# Keeps a VM's title in a file, and logs its calls.
VIRSH = """#!/bin/sh
echo "$@" >> "$0.log"
if [ "$1 $3" = "desc --title" ] && [ $# = 3 ]; then cat "$0.title"; fi
if [ "$1 $3" = "desc --title" ] && [ $# = 4 ]; then echo "$4" > "$0.title"; fi
"""


def example(first_line: str) -> str:
    blocks: list[str] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    return next(block for block in blocks if block.startswith(first_line))


@pytest.fixture
def virsh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "virsh"
    program.write_text(VIRSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return program


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = tmp_path / "settings.toml"
    config.write_text(example("hypervisor"))
    return load_settings({}, lab=True, config=config, environ={"HOME": "/home/ann"})


def perform(settings: Settings, directory: Path, act: Act) -> ActDone:
    async def scenario() -> ActDone:
        command = CommandHypervisor(settings.commands, directory)
        try:
            while isinstance(answer := await command.perform(act, NOW), ActUnderWay):
                pass
            return answer
        finally:
            await command.close()

    return asyncio.run(scenario())


def test_the_fleet_on_the_page_is_accepted() -> None:
    programs = {vm.name: vm.program for vm in read_fleet_file(example("[[hosts]]")).vms}
    assert programs["web-1"] == ("python3", "app.py")
    assert programs["workers_2"] == ("/srv/shop/worker", "--quiet")


def test_the_commands_on_the_page_reboot_and_freeze(settings: Settings, virsh: Path, tmp_path: Path) -> None:
    assert settings.hypervisor is HypervisorKind.COMMAND
    assert perform(settings, tmp_path / "commands", ACT).ok
    freeze = Act(id="E2:web-0", vm="s/g/web-0", name="web-0", verb=Verb.FREEZE, event_id="E2", duration_s=0)
    assert perform(settings, tmp_path / "commands", freeze).ok
    calls = virsh.with_name("virsh.log").read_text().splitlines()
    assert calls == ["reboot web-0", "desc web-0 --title E1:web-0", "suspend web-0", "resume web-0"]


@pytest.mark.parametrize(("title", "reboots"), [("E1:web-0", 0), ("E0:web-0", 1)])
def test_the_check_on_the_page_detects_whether_a_reboot_happened(
    settings: Settings, virsh: Path, tmp_path: Path, title: str, reboots: int
) -> None:
    virsh.with_name("virsh.title").write_text(f"{title}\n")
    (tmp_path / "commands").mkdir()
    attempts = CommandRunJournal(tmp_path / "commands" / "attempts.db")
    attempts.begin(ACT.id, NOW)
    attempts.close()
    assert perform(settings, tmp_path / "commands", ACT).ok
    assert virsh.with_name("virsh.log").read_text().splitlines().count("reboot web-0") == reboots


def test_a_verb_without_a_command_fails_with_the_note_on_the_page(
    settings: Settings, virsh: Path, tmp_path: Path
) -> None:
    act = Act(id="E3:web-0", vm="s/g/web-0", name="web-0", verb=Verb.EVICT, event_id="E3")
    done = perform(settings, tmp_path / "commands", act)
    assert done == ActDone(ok=False, note="'sh' ended with code 1: no command for evict of web-0")


def test_the_page_names_every_verb_and_every_variable() -> None:
    assert all(f"`{verb}`" in PAGE for verb in Verb)
    variables = set(re.findall(r"^\| `FOREWARN_(\w+)` \|", PAGE, re.MULTILINE))
    assert variables == {name.upper() for name in command_input(ACT)}


def test_the_page_states_the_timeouts_retries_and_limits_of_the_service() -> None:
    retry, limits = ActRetryPolicy(), ActLimits()
    section = PAGE.partition("\n## Timeouts")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (?:real|lab)? ?\|$", section, re.MULTILINE)
    delays = ", ".join(f"{retry.delay_s(failures):g} s" for failures in range(1, retry.max_attempts))
    assert [value for _, value in rows] == [
        f"after {retry.timeout_s:g} s",
        f"{retry.max_attempts}",
        f"{delays}; at most {retry.max_delay_s:g} s",
        f"after {RECONNECT_GRACE_S:g} s",
        f"after {ANSWER_TIMEOUT_S:g} s",
        f"after {CommandSpec(run=()).timeout_s:g} s",
        f"{limits.overall}",
        f"{limits.per_host}",
        f"{limits.per_move}",
        f"after {limits.unanswered_after_s:g} s",
    ]
