"""The az command line against a service over TLS, with the cloud registered or not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.azure.az_client import AZ, COMPUTE, Az, json_of, login, run_az
from tests.support.web_service import WebService, open_web_service

pytestmark = [pytest.mark.az, pytest.mark.skipif(not AZ.exists(), reason="az was not fetched: `make test-az` does")]


@contextmanager
def approving(console: WebService, vm: str, answer: Callable[[], Any]) -> Iterator[Any]:
    """Runs az while a program in the VM approves and lab time passes."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(answer)
        console.approve_until_over(vm, waiting.done, within_s=90)
        yield waiting.result()


def run_and_approve(console: WebService, vm: str, az: Az, *arguments: str) -> Any:
    with approving(console, vm, lambda: az(*arguments)) as answer:
        return json_of(answer)


def history(console: WebService, vm: str) -> str:
    listing = console.service.forewarn("history", "--vm", vm)
    assert listing.returncode == 0, listing.stderr
    return listing.stdout


def test_vms_are_listed_with_their_state(az: Az) -> None:
    answer = az("vm", "list", "-d", "-g", "shop", "-o", "table")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert any(line.startswith("easy-5 ") and "VM running" in line and "westeurope" in line for line in lines)


def test_a_vm_is_shown_with_its_state(az: Az) -> None:
    shown = json_of(az("vm", "show", "-d", "-g", "shop", "-n", "easy-5"))
    assert (shown["name"], shown["powerState"]) == ("easy-5", "VM running")


@pytest.mark.parametrize(("command", "kind"), [("restart", "Reboot"), ("redeploy", "Redeploy")])
def test_an_az_command_waits_until_its_event_is_over(
    console: WebService, az: Az, vm: str, command: str, kind: str
) -> None:
    run_and_approve(console, vm, az, "vm", command, "-g", "shop", "-n", vm)
    assert f"{kind} of {vm}" in history(console, vm)


def test_a_restart_with_no_wait_creates_an_event(console: WebService, az: Az, vm: str) -> None:
    json_of(az("vm", "restart", "-g", "shop", "-n", vm, "--no-wait"))
    assert [(e["EventType"], e["EventSource"]) for e in console.events(vm)] == [("Reboot", "User")]


def test_an_eviction_is_simulated(console: WebService, az: Az, spot_vm: str) -> None:
    json_of(az("vm", "simulate-eviction", "-g", "shop", "-n", spot_vm))
    assert [event["EventType"] for event in console.events(spot_vm)] == ["Preempt"]


def test_a_vm_is_deleted(console: WebService, az: Az, vm: str) -> None:
    run_and_approve(console, "easy-5", az, "vm", "delete", "--yes", "-g", "shop", "-n", vm)
    answer = az("vm", "show", "-g", "shop", "-n", vm)
    assert answer.returncode == 3
    assert "ResourceNotFound" in answer.stderr


def test_instances_of_a_scale_set_are_listed_and_restarted(console: WebService, az: Az) -> None:
    listed = json_of(az("vmss", "list-instances", "-g", "shop", "-n", "az-pair"))
    assert [instance["instanceId"] for instance in listed] == ["0", "1", "2"]
    run_and_approve(
        console, "az-pair_2", az, "vmss", "restart", "-g", "shop", "-n", "az-pair", "--instance-ids", "0", "1"
    )
    assert "Reboot" in history(console, "az-pair_0")
    assert "Reboot" not in history(console, "az-pair_2")


def test_the_vms_of_a_flexible_set_are_listed_and_operated_as_vms(console: WebService, az: Az) -> None:
    """Spec §14.5: as on Azure, the set itself cannot be restarted."""
    first, second = (one["instanceId"] for one in json_of(az("vmss", "list-instances", "-g", "shop", "-n", "flex-az")))
    assert json_of(az("vm", "list", "-g", "shop", "--vmss", "flex-az", "--query", "[].name")) == [first, second]
    refused = az("vmss", "restart", "-g", "shop", "-n", "flex-az")
    assert (refused.returncode, "(BadRequest)" in refused.stderr) == (1, True)
    json_of(az("vm", "restart", "--no-wait", "-g", "shop", "-n", first))
    assert [event["Resources"] for event in console.events(second)] == [[first]]
    json_of(az("vmss", "delete-instances", "-g", "shop", "-n", "flex-az", "--instance-ids", second))
    left = json_of(az("vmss", "list-instances", "-g", "shop", "-n", "flex-az", "--query", "[].name"))
    assert left == [first]


def test_a_scale_set_is_redeployed_with_az_rest(console: WebService, az: Az) -> None:
    url = f"{COMPUTE}/virtualMachineScaleSets/az-whole/redeploy?api-version=2024-11-01"
    json_of(az("rest", "-m", "post", "-u", url, "-b", '{"instanceIds":["1"]}'))
    assert [(e["EventType"], e["Resources"]) for e in console.events("az-whole_0")] == [("Redeploy", ["az-whole_1"])]


def test_the_terminate_notification_of_a_scale_set_is_enabled(console: WebService, az: Az) -> None:
    arguments = ("--enable-terminate-notification", "true", "--terminate-notification-time", "10")
    json_of(az("vmss", "update", "-g", "shop", "-n", "az-profile", *arguments))
    shown = json_of(az("vmss", "show", "-g", "shop", "-n", "az-profile"))
    profile = shown["virtualMachineProfile"]["scheduledEventsProfile"]["terminateNotificationProfile"]
    assert profile == {"enable": True, "notBeforeTimeout": "PT10M"}


def test_a_tag_is_set(az: Az, vm: str) -> None:
    json_of(az("vm", "update", "-g", "shop", "-n", vm, "--set", "tags.owner=ann"))
    assert json_of(az("vm", "show", "-g", "shop", "-n", vm))["tags"]["owner"] == "ann"


def test_automatic_approval_of_restarts_is_enabled_for_a_vm(console: WebService, az: Az, vm: str) -> None:
    json_of(az("vm", "update", "-g", "shop", "-n", vm, "--enable-user-reboot-scheduled-events", "true"))
    json_of(az("vm", "restart", "-g", "shop", "-n", vm, "--no-wait"))
    assert console.scheduled_event_ids(vm) == []


def test_a_missing_vm_is_reported_as_not_found(az: Az) -> None:
    answer = az("vm", "restart", "-g", "shop", "-n", "nobody")
    assert answer.returncode == 3
    assert "(ResourceNotFound)" in answer.stderr


def test_several_vms_are_restarted_by_their_ids(console: WebService, az: Az, names: dict[str, Iterator[int]]) -> None:
    chosen = [f"web-{next(names['web'])}" for _ in range(2)]
    ids = [f"{COMPUTE}/virtualMachines/{name}" for name in chosen]
    json_of(az("vm", "restart", "--no-wait", "--ids", *ids))
    assert [len(console.scheduled_event_ids(name)) for name in chosen] == [1, 1]


def test_groups_and_scale_sets_are_listed(az: Az) -> None:
    assert {"shop", "many"} <= {group["name"] for group in json_of(az("group", "list"))}
    assert "az-pair" in {found["name"] for found in json_of(az("vmss", "list"))}


def test_a_reader_is_refused_a_restart(console: WebService, tmp_path: Path, vm: str) -> None:
    client_id, secret = console.new_client("Reader")
    shell = console.environment() | {"AZURE_CONFIG_DIR": str(tmp_path)}
    json_of(run_az(shell, *login(console, client_id, secret)))
    answer = run_az(shell, "vm", "restart", "-g", "shop", "-n", vm)
    assert answer.returncode == 1
    assert "(AuthorizationFailed)" in answer.stderr
    assert console.events(vm) == []


def test_a_wrong_secret_is_rejected_with_a_message(console: WebService, tmp_path: Path) -> None:
    shell = console.environment() | {"AZURE_CONFIG_DIR": str(tmp_path)}
    answer = run_az(shell, *login(console, "admin", "guessed"))
    assert answer.returncode == 1
    assert "AADSTS7000215" in answer.stderr


def test_forewarn_env_prints_everything_az_needs(console: WebService, easy_vm: str) -> None:
    shell = console.environment()
    secret = f"@{console.console_info['admin_secret']}"  # as forewarn env says: not visible in the list of processes
    json_of(run_az(shell, *login(console, "admin", secret)))
    assert easy_vm in {found["name"] for found in json_of(run_az(shell, "vm", "list"))}
    json_of(run_az(shell, "vm", "restart", "-g", "shop", "-n", easy_vm, "--no-wait"))
    clouds = json_of(run_az(shell, "cloud", "list"))
    assert [cloud["endpoints"]["resourceManager"] for cloud in clouds] == [console.base_url]


@pytest.mark.namespaces
@pytest.mark.skipif(shutil.which("pasta") is None, reason="without pasta a VM does not reach the console of its host")
def test_a_vm_signs_in_by_its_own_identity(tmp_path: Path, fleet: str) -> None:
    """Inside `forewarn vm run` only the VM itself can reach its metadata address."""
    with open_web_service(tmp_path / "data", fleet=fleet) as console:
        console.grant("Reader", to="web-0", over="web-1")
        shell = console.environment() | {"AZURE_CONFIG_DIR": str(tmp_path / "az")}
        script = f"{AZ} login --identity >/dev/null && {AZ} vm list --query [].name -o tsv"
        line = [
            sys.executable,
            "-m",
            "forewarn",
            "--data",
            str(tmp_path / "data"),
            "vm",
            "run",
            "web-0",
            "--",
            "sh",
            "-c",
            script,
        ]
        answer = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, env=shell)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.split() == ["web-1"]
