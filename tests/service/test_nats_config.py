"""`nats.conf` and credentials of a cluster: each node has its own user, and hosts are added without replacing any."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from forewarn.cluster.nats_config import CONTROL_CREDENTIALS_FILE, host_credentials_path, write_nats_config
from forewarn.errors import Refused, Unavailable
from forewarn.service.cluster_secrets import create_cluster_secrets
from tests.support.service_process import run_forewarn

HOSTS = [f"h{number}" for number in range(10, 20)]


def users(config: Path) -> dict[str, dict[str, object]]:
    lines = [line.strip() for line in config.read_text(encoding="utf-8").splitlines() if line.strip().startswith("{")]
    return {user["user"]: user["permissions"] for user in map(json.loads, lines)}


def test_each_node_may_use_its_own_subjects_only(tmp_path: Path) -> None:
    config = write_nats_config(tmp_path, ["H7", "rack.2", "control"])
    assert users(config)["control"] == {"publish": ["forewarn.>"], "subscribe": ["forewarn.>"]}
    assert users(config)["host-h7"] == {
        "publish": ["forewarn.request.h7", "forewarn.report.h7"],
        "subscribe": ["forewarn.heartbeat", "forewarn.host.h7", "forewarn.act.h7", "forewarn.inbox.h7.>"],
        "allow_responses": True,
    }
    assert users(config)["host-rack%2E2"]["publish"] == ["forewarn.request.rack%2E2", "forewarn.report.rack%2E2"]
    assert config.stat().st_mode & 0o777 == 0o600
    assert host_credentials_path(tmp_path, "h7").read_text(encoding="utf-8").startswith("host-h7:")


def test_hosts_are_added_and_nothing_is_replaced(tmp_path: Path) -> None:
    write_nats_config(tmp_path, ["h1"])
    before = (tmp_path / CONTROL_CREDENTIALS_FILE).read_text(encoding="utf-8")
    config = write_nats_config(tmp_path, ["h2"])
    assert sorted(users(config)) == ["control", "host-h1", "host-h2"]
    assert (tmp_path / CONTROL_CREDENTIALS_FILE).read_text(encoding="utf-8") == before
    with pytest.raises(Refused, match="host 'H1' has credentials already"):
        write_nats_config(tmp_path, ["h3", "H1"])
    assert sorted(users(config)) == ["control", "host-h1", "host-h2"]


def test_the_commands_make_and_extend_a_directory(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    made = run_forewarn(tmp_path, "--json", "cluster", "init", str(directory), "--host", "h1")
    assert made.returncode == 0, made.stderr
    assert sorted(json.loads(made.stdout)["hosts"]) == ["h1"]
    added = run_forewarn(tmp_path, "cluster", "add-host", str(directory), "h2")
    assert "h2.credentials" in added.stdout
    again = run_forewarn(tmp_path, "cluster", "init", str(directory))
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)
    assert sorted(users(directory / "nats.conf")) == ["control", "host-h1", "host-h2"]


@pytest.mark.parametrize("exists", [False, True])
def test_secrets_that_do_not_fit_on_the_disk_leave_nothing_behind(tmp_path: Path, *, exists: bool) -> None:
    directory = tmp_path / "secrets"
    if exists:
        directory.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # enough for keys, and not for nats.conf
    try:
        with pytest.raises(Unavailable, match=r"nats\.conf' cannot be written now"):
            create_cluster_secrets(directory, 1.0, HOSTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert directory.exists() is exists
    create_cluster_secrets(directory, 1.0, HOSTS)
    assert sorted(users(directory / "nats.conf")) == ["control", *(f"host-{host}" for host in HOSTS)]
