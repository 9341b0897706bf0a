"""The files in deploy/ for the agent: the systemd unit and the Containerfile are valid and say what they should."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from forewarn.agent.config import DEFAULT_STATE_DIRECTORY
from forewarn.cli.root_command import forewarn

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "forewarn-agent.service"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "agent.Containerfile").read_text(encoding="utf-8"))
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, rest in lines]


def assert_is_command(words: list[str]) -> None:
    """Asserts that these words after `forewarn` are an existing command with existing options."""
    command: click.Command = forewarn
    for word in words:
        if isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            assert found is not None, word
            command = found
        elif word.startswith("--"):
            assert word in {option for parameter in command.params for option in parameter.opts}


def test_the_unit_runs_the_agent_with_an_existing_command() -> None:
    program, *words = shlex.split(unit()["Service"]["ExecStart"])
    assert program.endswith("/bin/forewarn")
    assert words[:2] == ["agent", "run"]
    assert_is_command(words)


def test_the_unit_always_restarts_the_agent() -> None:
    service = unit()["Service"]
    assert (service["Restart"], unit()["Unit"]["StartLimitIntervalSec"]) == ("always", "0")
    assert "network-online.target" in unit()["Unit"]["After"]
    assert unit()["Install"]["WantedBy"] == "multi-user.target"


def test_the_unit_keeps_the_journal_private_and_over_reboots() -> None:
    service = unit()["Service"]
    assert f"/var/lib/{service['StateDirectory']}" == DEFAULT_STATE_DIRECTORY
    assert (service["StateDirectoryMode"], service["UMask"]) == ("0700", "0077")


def test_the_unit_is_hardened_and_still_lets_commands_work() -> None:
    service = unit()["Service"]
    assert service["NoNewPrivileges"] == "yes"
    assert service["KillMode"] == "mixed"  # the agent ends its own steps
    hidden = {"PrivateTmp", "ProtectHome", "PrivateNetwork", "PrivateUsers", "ProtectProc", "CapabilityBoundingSet"}
    assert not hidden & set(service)
    assert service["ProtectSystem"] != "strict"


@pytest.mark.real
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    copy = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))  # the program need not be installed
    after = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60)
    assert (after.returncode, after.stdout, after.stderr) == (0, "", "")


def test_the_container_runs_the_agent_as_an_unprivileged_user() -> None:
    listed = instructions()
    last = dict(listed)
    assert last["USER"].isdigit()  # orchestrators can see that it is not root
    assert last["USER"] != "0"
    assert max(place for place, (word, _) in enumerate(listed) if word == "RUN") < [w for w, _ in listed].index("USER")
    words = [*json.loads(last["ENTRYPOINT"]), *json.loads(last["CMD"])]
    assert words[0] == "forewarn"
    assert_is_command(words[1:])


def test_the_container_keeps_the_journal_in_a_volume() -> None:
    assert dict(instructions())["VOLUME"] == DEFAULT_STATE_DIRECTORY
