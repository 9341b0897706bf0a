"""What commands answer to `--json` is frozen, for each command that asks a service, a VM's endpoint or an agent.

Keys, types, codes and words that programs read are compared; sentences for people are masked.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tests.golden.harness import Masks, Service, check_golden_json
from tests.golden.write_data_directory import write_agent_file

FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"

[[hosts]]
name = "host-{n}"
count = 6

[[availability_sets]]
name = "web"
update_domains = 3

[[vms]]
name = "web-{n}"
count = 3
availability_set = "web"

[[vms]]
name = "lone-{n}"
count = 8

[[vms]]
name = "spot"
priority = "Spot"

[[scale_sets]]
name = "workers"
count = 2
terminate_notification = 5
"""
RECORDING = [
    {"forewarn-recording": 1, "vm": "x", "api_version": "2020-07-01", "started_at": 1.0},
    {"at_s": 0, "status": 500},
]


class Commands:
    """`forewarn WORDS --json` in this process, by the entry point of the package; what it says is noted."""

    def __init__(self, service: Service, masks: Masks, folder: Path) -> None:
        self.service, self.masks, self.folder = service, masks, folder
        (self._entry,) = entry_points(group="console_scripts", name="forewarn")
        self.noted: list[Any] = []

    def __call__(self, *words: str, shown: str = "", keep: Callable[[Any], Any] = lambda told: told) -> Any:
        code, out, err = self._run("--data", str(self.service.data), *words, "--json")
        told = json.loads(out or err)
        name = self.masks.text(" ".join(words)).replace(str(self.folder), "<folder>")
        note = {"command": shown or name, "exit": code, "stream": "out" if out else "err"}
        self.noted.append(note | {"json": self.masks.value(keep(told))})
        return told

    def _run(self, *words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name in [name for name in os.environ if name.startswith(("FOREWARN_", "SCHEDULEDEVENTS"))]:
                patch.delenv(name)
            patch.setenv("XDG_CONFIG_HOME", str(self.folder / "config"))
            patch.setattr("sys.argv", ["forewarn", *words])
            with pytest.raises(SystemExit) as ended:
                raise SystemExit(self._entry.load()())
        code = ended.value.code or 0
        assert isinstance(code, int), code
        return code, out.getvalue(), err.getvalue()


def types(told: dict[str, Any]) -> Any:
    return {name: type(value).__name__ for name, value in told.items()}


def without_measures(told: Any, key: str = "") -> Any:
    """An agent's clock runs on between two answers, so its instants are measured; when steps begin is said in words."""
    if isinstance(told, dict):
        return {name: without_measures(inner, "text" if key == "begins" else name) for name, inner in told.items()}
    if isinstance(told, list):
        return [without_measures(inner, key) for inner in told]
    if isinstance(told, float) and key.endswith(("at", "_s", "_until", "not_before")) and key != "budget_s":
        return "<measured float>"
    if isinstance(told, str) and told[:4].isdigit() and key.endswith(("at", "_until", "not_before")):
        return "<measured time>"
    return "<text>" if key == "text" and told else told


def about_the_fleet(do: Commands) -> None:
    file = do.folder / "fleet.toml"
    file.write_text(FLEET + '\n[[vms]]\nname = "added"\n', encoding="utf-8")
    bad = do.folder / "bad.toml"
    bad.write_text("[[vms]]\n", encoding="utf-8")
    do("fleet", "show")
    do("fleet", "show", "web-0")
    do("fleet", "show", "nothing")
    do("fleet", "check", str(file))
    do("fleet", "check", str(bad))
    do("fleet", "apply", str(file), "--yes")
    do("fleet", "add-host", "extra", "--location", "westeurope")
    do("fleet", "add", "more", "--location", "westeurope", "--host", "host-0")
    do("fleet", "remove", "more")
    do("fleet", "remove-host", "extra")
    do("vm", "list")


def about_maintenance(do: Commands) -> None:
    do("restart", "lone-0", "--dry-run")
    event = do("restart", "lone-0", "--notice", "20m")["events"][0]["id"]
    do("restart", "lone-0")
    do("redeploy", "lone-1")
    do("evict", "spot")
    do("evict", "lone-1")
    do("delete", "workers_0")
    do("power", "lone-2", "off")
    do("events")
    do("approve", event)
    do("withdraw", event)
    do("withdraw", do("restart", "lone-3")["events"][0]["id"], "--reason", "later")
    do("clock", "advance", "2m")
    do("events", "--all")
    rollout = do("rollout", "start", "--scope", "web", "--impact", "update", "--no-wait")["id"]
    do("rollout", "list")
    do("rollout", "show", rollout)
    do("rollout", "pause", rollout)
    do("rollout", "resume", rollout)
    do("perform-maintenance", "web-0")
    do("rollout", "abort", rollout)
    do("degrade", "host-4", "--in", "7d")
    do("fail", "host-5")
    do("repair", "host-5")
    do("explain", "lone-0")
    do("history", "--vm", "lone-0", "--limit", "5")
    do("history", "prune", "--older-than", "30d")


def about_faults(do: Commands) -> None:
    recording = do.folder / "recording.jsonl"
    recording.write_text("".join(json.dumps(line) + "\n" for line in RECORDING), encoding="utf-8")
    do("replay", str(recording), "--vm", "lone-5", "--no-wait")
    do("replays")
    do("fault", "set", "throttled", "--vm", "lone-4", "--count", "3")
    do("fault", "list", keep=lambda told: {**told, "kinds": len(told["kinds"])})
    do("fault", "clear", "--all")
    do("fault", "storm", "--seed", "7", "--vm", "lone-4", "--for", "2m")


def about_access(do: Commands) -> None:
    hook = do("webhook", "add", "http://127.0.0.1:1/nobody", "--schema", "cloudevents")["id"]
    do("webhook", "list")
    do("webhook", "test", hook)
    do("webhook", "remove", hook)
    do("access", "client", "add", "bot", "--name", "A bot")
    do("access", "client", "renew", "bot")
    grant = do("access", "grant", "Operator", "--to", "bot", "--over-group", "shop")["id"]
    do("access", "show")
    do("access", "revoke", grant)
    do("access", "client", "remove", "bot")
    do("whoami")
    do("profiles")
    do("portal", keep=types)
    do("env", keep=types)
    do("ca", keep=types)
    do("ca", "export", str(do.folder / "ca.pem"), keep=types)


def about_upkeep(do: Commands) -> None:
    do("clock", "show")
    do("clock", "speed", "0")
    do("backup", str(do.folder / "copy.db"))
    do("doctor", keep=types)
    do.noted[-1]["exit"] = "as the machine is"


def about_guests(do: Commands) -> None:
    at = ("--endpoint", do.service.url("lone-6"))
    do.service.ask("restart", "lone-6")
    do("guest", "events", *at, shown="guest events")
    do("guest", "approve", "--own", *at, shown="guest approve --own")
    folder = do.folder / "agent"
    write_agent_file(folder)
    (folder / "go").touch()
    event = do.service.ask("restart", "lone-7")["events"][0]["id"]
    config = ("--config", str(folder / "agent.toml"))
    do("agent", "check", str(folder / "agent.toml"), keep=without_measures)
    ran = do.service.command("agent", "run", "--once", *config, "--endpoint", do.service.url("lone-7"))
    assert ran.returncode == 0, ran.stderr
    do("agent", "status", *config, keep=without_measures)
    do("agent", "explain", event, *config, keep=without_measures)


AREAS = {
    "fleet": about_the_fleet,
    "maintenance": about_maintenance,
    "faults": about_faults,
    "access": about_access,
    "upkeep": about_upkeep,
    "guests": about_guests,
}


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Any]]]:
    """Every command, in a fixed order."""
    folder = tmp_path_factory.mktemp("commands")
    with Service(folder / "data", fleet=FLEET, has_api=True) as service:
        service.stop_the_clock()
        masks, noted = service.masks(), {}
        masks.replace(str(folder), "<folder>")
        for area, walk in AREAS.items():
            do = Commands(service, masks, folder)
            walk(do)
            noted[area] = do.noted
        yield noted


@pytest.mark.parametrize("area", AREAS)
def test_the_json_of_commands_keeps_its_shape(noted: dict[str, list[Any]], area: str) -> None:
    check_golden_json(f"cli/{area}.json", noted[area])


def test_a_command_without_a_service_answers_programs_with_a_code(tmp_path: Path) -> None:
    do = Commands(Service(tmp_path / "data"), Masks({str(tmp_path): "<folder>"}), tmp_path)
    do("events")
    do("nonsense")
    check_golden_json("cli/no-service.json", do.noted)
