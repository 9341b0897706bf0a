"""Names that users write down are frozen: metrics, keys of fleet files, settings, and public names of the client."""

from __future__ import annotations

import http.client
import inspect
import json
import re
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import forewarn.client
from tests.golden.harness import Service, call, check_golden, environment, eventually, free_port, run_command
from tests.golden.write_data_directory import agent_line, write_agent_file

FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 2\n[[vms]]\nname = "guarded"\n'
IMPOSSIBLE = "colour"  # no table and no settings file has such a key
KEYS = (
    *("name", "count", "first", "id", "subscription", "resource_group", "location", "zone", "zones", "size", "os_type"),
    *("tags", "computer_name", "computer_name_prefix", "availability_set", "scale_set", "cloud_service"),
    *("placement_group", "update_domain", "fault_domain", "update_domains", "fault_domains", "priority"),
    *("eviction_policy", "terminate_notification", "auto_approve", "program", "environment", "directory", "address"),
    *("host", "roles", "orchestration", "narrow_delivery", "approve_all_down"),
    IMPOSSIBLE,
)
TABLES = (
    *("[defaults]", "[[subscriptions]]", "[[resource_groups]]", "[[hosts]]", "[[vms]]", "[[availability_sets]]"),
    *("[[scale_sets]]", "[[cloud_services]]", '[[cloud_services]]\nname = "c"\n[[cloud_services.roles]]'),
)
SETTINGS = (
    *("data", "lab", "fleet", "listen", "listeners", "sockets", "workers", "port", "one_port_per_vm", "enablement"),
    *("start_grace_s", "event_settle_s", "max_user_operations", "first_answer_delay_s", "requests_per_s"),
    *(
        "history_days",
        "unknown_version",
        "iso_dates",
        "require_header",
        "versions",
        "metrics",
        "api",
        "api_certificate",
    ),
    *("api_key", "api_names", "token_minutes", "identity_on_loopback", "oidc_issuer", "oidc_audience"),
    *("oidc_jwks", "oidc_client_id", "oidc_client_secret_file", "strict_api_versions", "hypervisor", "simulate"),
    "commands",
    IMPOSSIBLE,
)


def metric_names(text: str) -> str:
    """One line per metric: its name, its type, and the names of its labels."""
    types = dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text))
    labels: dict[str, set[str]] = {name: set() for name in types}
    for name, given in re.findall(r"(?m)^(\w+)(?:\{(.*)\})? \S+$", text):
        owner = next(
            (base for base in (name, re.sub(r"_(bucket|sum|count|created)$", "", name)) if base in types), name
        )
        labels.setdefault(owner, set()).update(re.findall(r'(\w+)="', given))
    own = sorted(name for name in labels if name.startswith("forewarn_"))
    return "".join(
        f"{name} {types.get(name, 'untyped')} {' '.join(sorted(labels[name]))}".rstrip() + "\n" for name in own
    )


def test_the_metrics_of_the_service_keep_their_names_types_and_labels(tmp_path: Path) -> None:
    with Service(tmp_path / "data", fleet=FLEET) as service:
        service.poll("guarded")
        answer = service.local("GET", "/metrics")
    assert answer.status == 200
    check_golden("names/service-metrics.txt", metric_names(answer.body.decode()))


def test_the_metrics_of_the_agent_keep_their_names_types_and_labels(tmp_path: Path) -> None:
    port = free_port()
    write_agent_file(tmp_path / "agent", f"127.0.0.1:{port}")
    (tmp_path / "agent/go").touch()
    with Service(tmp_path / "data", fleet=FLEET) as service:
        event_id = service.ask("restart", "guarded")["events"][0]["id"]
        line = agent_line(tmp_path / "agent", service.url("guarded"))
        with subprocess.Popen(line, env=environment(), stderr=subprocess.DEVNULL) as agent:
            try:
                eventually(
                    lambda: service.good("GET", f"/events/{event_id}")["approved_by"] or agent.poll() is not None
                )
                service.advance(120)
                text = eventually(lambda: _page_after_the_event(port))
            finally:
                agent.kill()
    check_golden("names/agent-metrics.txt", metric_names(text))


def _page_after_the_event(port: int) -> str:
    """The agent's metrics once it has undone its steps; "" before."""
    answer = call(http.client.HTTPConnection("127.0.0.1", port, timeout=10), "GET", "/metrics")
    text = answer.body.decode()
    return text if 'outcome="finished"' in text and 'phase="undo"' in text else ""


def test_a_fleet_file_takes_the_same_keys(tmp_path: Path) -> None:
    """Each key is tried in each table; one that is refused as a key is that cannot exist is unknown there."""
    accepted = []
    for number, table in enumerate(TABLES):
        path = tmp_path / f"fleet-{number}.toml"
        path.write_text(f"{table}\n" + "".join(f"{key} = []\n" for key in KEYS), encoding="utf-8")
        told = json.loads(run_command("--data", str(tmp_path), "fleet", "check", str(path), "--json").stderr)
        refused = {problem["message"] for problem in told["error"]["problems"]}
        (unknown,) = (what for what in refused if f"'{IMPOSSIBLE}'" in what)
        known = [key for key in KEYS if unknown.replace(f"'{IMPOSSIBLE}'", f"'{key}'") not in refused]
        accepted.append(" ".join([table.rpartition("\n")[2], *known]))
    check_golden("names/fleet-file-keys.txt", "\n".join(accepted) + "\n")


def test_a_settings_file_takes_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each setting is tried beside one that is wrong, so that no service starts."""
    (entry,) = entry_points(group="console_scripts", name="forewarn")
    path = tmp_path / "settings.toml"

    def refusal(name: str) -> str:
        path.write_text(f'{name} = []\nport = "none"\n' if name != "port" else 'port = "none"\n', encoding="utf-8")
        monkeypatch.setattr("sys.argv", ["forewarn", "--data", str(tmp_path), "up", "--config", str(path)])
        with pytest.raises(SystemExit):
            entry.load()()
        return capsys.readouterr().err.partition(f"'{name}'")[0]

    unknown = refusal(IMPOSSIBLE)
    known = [name for name in SETTINGS if refusal(name) != unknown]
    check_golden("names/settings.txt", "\n".join(known) + "\n")


def test_the_client_keeps_its_public_names() -> None:
    lines = []
    for name in sorted(forewarn.client.__all__):
        value = getattr(forewarn.client, name)
        members = sorted(set(dir(value)) - set(dir(str)) - set(dir(Exception))) if inspect.isclass(value) else []
        lines.append(" ".join([name, *(member for member in members if not member.startswith("_"))]))
    check_golden("names/client.txt", "\n".join(lines) + "\n")
