"""All commands: text, JSON with --json, exit code 3 and one sentence without a service, help."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import pytest

from forewarn.cli.root_command import forewarn
from forewarn.client.recording import EndpointRecording, RecordedResponse, RecordingHeader, encode_recording

FLEET = '[[hosts]]\nname = "h9"\nlocation = "westeurope"\n'

# Every command that calls the service, with arguments for the lab of this directory's conftest.
ASKING = {
    "fleet show": "fleet show",
    "fleet show VM": "fleet show db-0",
    "fleet add": "fleet add cache --location westeurope --host h3",
    "fleet remove": "fleet remove web",
    "fleet add-host": "fleet add-host h9 --location westeurope",
    "fleet remove-host": "fleet remove-host h9",
    "fleet check": "fleet check FILE",
    "fleet apply": "fleet apply FILE --yes",
    "vm list": "vm list",
    "restart": "restart web --notice 20m",
    "redeploy": "redeploy web",
    "evict": "evict spot",
    "delete": "delete web --scale-in",
    "power": "power web off",
    "perform-maintenance": "perform-maintenance db-0",
    "rollout start": "rollout start --host h1 --impact reboot --no-wait",
    "rollout plan": "rollout plan --everything --canary 1",
    "rollout check": "rollout check CHECKS",
    "rollout checks": "rollout checks ROLLOUT",
    "rollout list": "rollout list",
    "rollout show": "rollout show ROLLOUT",
    "rollout pause": "rollout pause ROLLOUT",
    "rollout resume": "rollout resume PAUSED",
    "rollout abort": "rollout abort ROLLOUT",
    "rollout hold": "rollout hold --reason incident",
    "rollout lift-hold": "rollout lift-hold",
    "rollout standing set": "rollout standing set --within 30d",
    "rollout standing show": "rollout standing show",
    "rollout standing remove": "rollout standing remove",
    "budget set": "budget set web --at-most 10% --per location",
    "budget list": "budget list",
    "budget remove": "budget remove web",
    "degrade": "degrade h2 --in 3d",
    "fail": "fail h2",
    "confirm-down": "confirm-down h9",
    "repair": "repair h9",
    "events": "events --all",
    "approve": "approve EVENT",
    "withdraw": "withdraw EVENT --reason later",
    "history": "history --vm web --limit 5",
    "history prune": "history prune --older-than 30d",
    "explain": "explain web",
    "replay": "replay RECORDING --vm web --no-wait",
    "replays": "replays",
    "fault list": "fault list",
    "fault set": "fault set stale age=30s --vm web --count 3",
    "fault clear": "fault clear --all",
    "fault storm": "fault storm --seed 7 --vm web --for 2m",
    "webhook add": "webhook add https://example.org/hook --schema cloudevents --status started",
    "webhook list": "webhook list",
    "webhook remove": "webhook remove WEBHOOK",
    "portal": "portal",
    "clock show": "clock show",
    "clock advance": "clock advance 15m",
    "clock speed": "clock speed 60",
    "backup": "backup BACKUP",
    "status": "status",
    "doctor": "doctor",
    "env": "env",
    "whoami": "whoami",
    "access show": "access show",
    "access client add": "access client add ci --name CI",
    "access client renew": "access client renew CLIENT",
    "access client remove": "access client remove CLIENT",
    "access grant": "access grant Operator --to CLIENT --over-group LAB",
    "access revoke": "access revoke GRANT",
}
ANSWERED = [name for name in ASKING if name != "backup"]  # a store in memory has no file to copy: test_backup.py
_ELSEWHERE = {
    "up",
    "down",
    "reset",
    "serve",
    "node run",
    "sockets",
    "restore",
    "completion",
    "guest events",
    "guest watch",
    "guest approve",
}
_ELSEWHERE |= {"vm run", "vm shell", "record", "webhook test"}
_ELSEWHERE |= {"agent run", "agent check", "agent status", "agent explain", "agent repair"}
_ELSEWHERE |= {"crash-test", "crash-test list", "crash-test explain", "crash-test claims", "crash-test replay"}
_ELSEWHERE |= {"network plan", "network apply", "network check", "network remove"}
_ELSEWHERE |= {"fleet import libvirt", "lab vms", "lab down", "vm console"}  # tests/vms
_ELSEWHERE |= {"cluster init", "cluster add-host", "node list", "node show", "node resign"}  # tests/cluster
_ELSEWHERE |= {"store migrate", "store copy", "store check", "store renew", "store without-standby"}  # tests/cluster
_ELSEWHERE |= {"ca", "ca export", "login", "logout", "profiles"}


def names(group: click.Group, before: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group) and not command.invoke_without_command:
            yield from names(command, f"{before}{name} ")
        elif isinstance(command, click.Group):
            yield from (f"{before}{name}", *names(command, f"{before}{name} "))
        else:
            yield f"{before}{name}"


def test_every_command_is_run_here_or_has_its_own_tests() -> None:
    assert set(names(forewarn)) == {name for name in ASKING if name.upper().split()[-1] not in name} | _ELSEWHERE


def arguments_for(lab: Any, name: str, tmp_path: Path) -> list[str]:
    """The arguments of a command, after creating the objects that they name."""
    arguments = ASKING[name].split()
    made = {"FILE": lambda: _file(tmp_path), "BACKUP": lambda: str(tmp_path / "b.db"), "EVENT": lambda: _event(lab)}
    made |= {"CHECKS": lambda: _rollout_file(tmp_path)}
    made |= {"RECORDING": lambda: _recording(tmp_path)}
    made |= {"CLIENT": lambda: _client(lab), "GRANT": lambda: _grant(lab)}
    made |= {"ROLLOUT": lambda: _rollout(lab), "PAUSED": lambda: _paused(lab), "WEBHOOK": lambda: _webhook(lab)}
    if name in ("fleet remove-host", "repair", "confirm-down"):
        lab.good("fleet", "add-host", "h9", "--location", "westeurope")
    if name == "perform-maintenance":
        _rollout(lab)
        lab.api.get("history", query={"after": 0, "wait_s": 5, "vm": "db-0"})
    if name in ("repair", "confirm-down"):
        lab.good("fail", "h9")
    if name == "rollout standing remove":
        lab.good("rollout", "standing", "set", "--within", "30d")
    if name == "budget remove":
        lab.good("budget", "set", "web", "--at-most", "2")
    if name == "rollout lift-hold":
        lab.good("rollout", "hold", "--reason", "an incident")
    return [made[word]() if word in made else word for word in arguments]


def _file(tmp_path: Path) -> str:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return str(path)


def _rollout_file(tmp_path: Path) -> str:
    path = tmp_path / "rollout.toml"
    path.write_text("[rollout]\neverything = true\n[[checks]]\nname = 'acts'\nfigure = 'failed-acts'\n")
    return str(path)


def _recording(tmp_path: Path) -> str:
    path = tmp_path / "recording.jsonl"
    beginning = RecordingHeader(vm="web", api_version="2020-07-01", started_at=1.0)
    path.write_bytes(
        encode_recording(EndpointRecording(header=beginning, answers=(RecordedResponse(at_s=0, status=500),)))
    )
    return str(path)


def _event(lab: Any) -> str:
    return str(lab.json("restart", "web")["events"][0]["id"][:6].lower())


def _rollout(lab: Any) -> str:
    return str(lab.json("rollout", "start", "--host", "h1", "--no-wait")["id"])


def _webhook(lab: Any) -> str:
    return str(lab.json("webhook", "add", "https://example.org/hook")["id"])


def _client(lab: Any) -> str:
    return str(lab.json("access", "client", "add")["id"])


def _grant(lab: Any) -> str:
    return str(lab.json("access", "grant", "reader", "--to", _client(lab), "--everything")["id"])


def _paused(lab: Any) -> str:
    return str(lab.json("rollout", "pause", _rollout(lab))["id"])


@pytest.mark.parametrize("name", ANSWERED)
def test_a_command_answers_people_with_text(lab: Any, name: str, tmp_path: Path) -> None:
    assert lab.good(*arguments_for(lab, name, tmp_path)).strip()


@pytest.mark.parametrize("name", ANSWERED)
def test_a_command_answers_programs_with_one_document(lab: Any, name: str, tmp_path: Path) -> None:
    arguments = arguments_for(lab, name, tmp_path)
    after = lab(*arguments, "--json")
    assert (after.exit_code, after.stderr) == (0, ""), after.output
    assert isinstance(json.loads(after.stdout), dict)
    assert after.stdout.count("\n") == 1


@pytest.mark.parametrize("name", [name for name in ASKING if name not in ("doctor", "fleet check")])
def test_a_command_without_a_service_says_how_to_start_one(command: Any, name: str, tmp_path: Path) -> None:
    files = {"FILE": _file, "RECORDING": _recording, "CHECKS": _rollout_file}
    arguments = [files[word](tmp_path) if word in files else word for word in ASKING[name].split()]
    sentence = command.refused(*arguments, code=3)
    assert sentence == f"no forewarn service answers in {command.data}: start one with `forewarn up`"


def test_json_and_data_may_come_before_the_command_name(lab: Any) -> None:
    result = lab("--json", "--data", str(lab.data), "clock", "show", FOREWARN_DATA="/nowhere")
    assert set(json.loads(result.stdout)) == {"now", "speed", "lab"}


def test_the_data_directory_comes_from_option_environment_or_state_directory(data: Path, command: Any) -> None:
    assert f"in {data}/x:" in command.refused("events", "--data", f"{data}/x", code=3)
    state = command("events", FOREWARN_DATA="", XDG_STATE_HOME=str(data))
    assert f"in {data}/forewarn:" in state.stderr
    home = command("events", FOREWARN_DATA="", XDG_STATE_HOME="", HOME=str(data))
    assert f"in {data}/.local/state/forewarn:" in home.stderr


def test_a_data_directory_with_too_long_a_path_is_refused(command: Any) -> None:
    assert "is too long for a socket: choose a shorter --data" in command.refused("events", "--data", "/" + "x" * 200)


@pytest.mark.parametrize("name", sorted({*ASKING, *_ELSEWHERE}))
def test_every_command_has_help(command: Any, name: str) -> None:
    arguments = [word for word in name.split() if word.islower()]
    assert "Usage: forewarn" in command.good(*arguments, "--help")


def test_the_help_lists_every_command(command: Any) -> None:
    shown = command.good("--help")
    assert all(f"  {name.split()[0]} " in shown for name in names(forewarn))
    assert "forewarn up" in shown


GROUPS = ("", *sorted({" ".join(name.split()[:-1]) for name in names(forewarn) if " " in name}))


def examples_of(command: Any, name: str) -> list[str]:
    lines = command.good(*name.split(), "--help").splitlines()
    return [line.strip() for line in lines if f"forewarn {name}" in line and not line.startswith("Usage")]


@pytest.mark.parametrize("name", [*GROUPS, *sorted(set(names(forewarn)))])
def test_the_help_of_every_command_has_examples_that_can_be_parsed(command: Any, name: str) -> None:
    examples = examples_of(command, name)
    assert examples
    for example in filter(lambda line: line.startswith("forewarn"), examples):
        words = shlex.split(example.partition(" > ")[0].partition(" -- ")[0])[1:]
        context, found = click.Context(forewarn), cast("click.Command", forewarn)
        while isinstance(found, click.Group) and words and not words[0].startswith("-"):
            _, child, words = found.resolve_command(context, words)
            assert child is not None, example
            context, found = click.Context(child, parent=context), child
        found.make_parser(context).parse_args(list(words))  # raises for an unknown option


@pytest.mark.parametrize("group", GROUPS)
def test_short_help_is_not_cut_at_80_columns(command: Any, group: str) -> None:
    lines = command.good(*group.split(), "--help", COLUMNS="80").splitlines()
    assert [line for line in lines[1:] if line.endswith("...")] == []


@pytest.mark.parametrize("group", ["", "clock", "access client"])
def test_a_group_without_a_subcommand_shows_its_help(command: Any, group: str) -> None:
    assert command.refused(*group.split()) == command.good(*group.split(), "--help").rstrip("\n")


def test_version_prints_the_version(command: Any) -> None:
    assert command.good("--version").startswith("forewarn 0.")
