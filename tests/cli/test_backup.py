"""A lab in its own process: up, backup, restore."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forewarn.cli.api_client import ApiClient
from forewarn.cli.transport import LocalTransport
from forewarn.machines.interface import process_start_time
from forewarn.machines.process.hypervisor import SupervisorRecord, SupervisorRecords
from forewarn.store import SqliteStore
from forewarn.store.purpose import StorePurpose, mark_purpose
from tests.support.service_process import free_port


@contextmanager
def up(data: Path, *options: str) -> Iterator[dict[str, Any]]:
    """Start a lab with `forewarn up --json`; yields the document that it printed."""
    command = [sys.executable, "-m", "forewarn.cli", "up", "--json", "--port", str(free_port()), *options]
    env = {**os.environ, "FOREWARN_DATA": str(data)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        process.stdout.close()


def test_a_lab_that_was_backed_up_is_restored_as_it_was(command: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "lab.backup")
    with up(command.data) as info:
        assert info["lab"] is True
        assert info["counts"]["vms"] > 0
        vm = command.json("fleet", "show")["vms"][0]["name"]
        assert "holds the whole store" in command.good("backup", file)
        assert "exists already" in command.refused("backup", file)
        command.good("restart", vm)
        assert "is in use by another service" in command.refused("restore", file)

    restored = command.json("restore", file)
    assert Path(restored["moved_aside"]).exists()
    with up(command.data) as info:
        assert info["counts"]["events"] == 0
        entries = command.json("history")["entries"]
    with up(command.data):
        later = command.json("history")["entries"]
    (told,) = (entry["text"] for entry in entries if "epoch" in entry["text"])
    assert told.endswith(f"because the backup '{file}' was restored")
    assert [entry["text"] for entry in later if "epoch" in entry["text"]] == [told], "it is told once"


def test_a_guest_of_the_lab_sees_a_restart_and_approves_it(command: Any) -> None:
    """Over real sockets: requested, delivered, approved, started (spec §1)."""
    with up(command.data):
        vm = next(vm for vm in command.json("fleet", "show")["vms"] if not vm["auto_approve"]["restart"])
        asked = command.json("restart", vm["name"])["events"][0]
        received = command.json("guest", "events", "--endpoint", vm["url"])
        assert [event["id"] for event in received["events"]] == [asked["id"]]
        assert (received["name"], received["events"][0]["affects_this_vm"]) == (vm["name"], True)
        command.good("guest", "approve", asked["id"][:8], "--endpoint", vm["url"])
        assert wait_for(command.data, "started", asked["id"])["approved_by"] == vm["name"]


def wait_for(data: Path, what: str, event_id: str) -> dict[str, Any]:
    """The event, once the history has an entry `what` about it."""
    api, seq, seen = ApiClient(LocalTransport(data)), 0, False
    while not seen:
        page = api.get("history", query={"event": event_id, "after": seq, "wait_s": 20})
        seq, seen = page["seq"], any(entry["kind"] == what for entry in page["entries"])
    return api.get("events", event_id)


@pytest.mark.parametrize(
    ("purpose", "command_line"), [(StorePurpose.LAB, "forewarn up"), (StorePurpose.PRODUCTION, "forewarn serve")]
)
def test_a_restore_names_the_command_that_starts_the_store(
    command: Any, tmp_path: Path, purpose: StorePurpose, command_line: str
) -> None:
    write_store(tmp_path / "copy", purpose)
    assert command_line in command.good("restore", str(tmp_path / "copy"))
    assert command.json("restore", str(tmp_path / "copy"))["purpose"] == purpose


def test_a_restore_repeats_the_data_directory_that_was_given(command: Any, tmp_path: Path) -> None:
    write_store(tmp_path / "copy", StorePurpose.LAB)
    given = str(tmp_path / "a lab")
    Path(given).mkdir(mode=0o700)
    shown = command.good("restore", str(tmp_path / "copy"), "--data", given)
    assert f"forewarn --data '{given}' up" in shown


@pytest.mark.parametrize(("present", "restored"), [tuple(StorePurpose), tuple(StorePurpose)[::-1]])
def test_a_restore_that_changes_the_purpose_of_a_store_is_refused_unless_the_option_says_so(
    command: Any, tmp_path: Path, present: StorePurpose, restored: StorePurpose
) -> None:
    write_store(tmp_path / "present", present)
    write_store(tmp_path / "other", restored)
    command.good("restore", str(tmp_path / "present"))
    before = (command.data / "forewarn.db").read_bytes()
    message = command.refused("restore", str(tmp_path / "other"))
    assert f"holds the store of a {present}" in message
    assert f"is of a {restored}" in message
    assert "--change-purpose" in message
    assert (command.data / "forewarn.db").read_bytes() == before
    assert list(command.data.glob("*before-restore*")) == []
    assert command.json("restore", str(tmp_path / "other"), "--change-purpose")["purpose"] == restored


def test_up_refuses_the_store_of_a_production_service_and_changes_nothing(command: Any, tmp_path: Path) -> None:
    """Otherwise its real events would follow a clock that anyone can move (spec §12)."""
    write_store(tmp_path / "copy", StorePurpose.PRODUCTION)
    command.good("restore", str(tmp_path / "copy"))
    before = (command.data / "forewarn.db").read_bytes()
    message = refused_up(command.data)
    assert "holds the store of a production service" in message
    assert "start it with `forewarn serve`" in message
    assert (command.data / "forewarn.db").read_bytes() == before


def test_a_lost_database_is_not_replaced_by_an_empty_one_unless_the_option_says_so(command: Any) -> None:
    with up(command.data) as info:
        vms = info["counts"]["vms"]
    for path in command.data.glob("forewarn.db*"):
        path.unlink()
    message = refused_up(command.data)
    assert "forewarn.db' is missing, but the directory has files of an earlier service (" in message
    assert "with --new-store" in message
    assert not (command.data / "forewarn.db").exists()
    with up(command.data, "--new-store") as info:
        assert info["counts"]["vms"] == vms
    assert "has a store already" in refused_up(command.data, "--new-store")


def refused_up(data: Path, *options: str) -> str:
    """The message of `forewarn up`, which must fail; in a process of its own, because it changes its process."""
    command = [sys.executable, "-m", "forewarn.cli", "up", "--port", str(free_port()), *options]
    env = {**os.environ, "FOREWARN_DATA": str(data)}
    answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 2, answer
    return answer.stderr


def write_store(path: Path, purpose: StorePurpose) -> None:
    async def write() -> None:
        store = SqliteStore.open(path)
        await mark_purpose(store, purpose)
        await store.close()

    asyncio.run(write())


def test_a_file_that_is_not_a_backup_is_not_restored(command: Any, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    assert "junk" in command.refused("restore", str(tmp_path / "junk"))
    assert "does not exist" in command.refused("restore", str(tmp_path / "nothing"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_service_tells_a_terminal_what_is_kept(command: Any, number: signal.Signals) -> None:
    arguments = [sys.executable, "-m", "forewarn.cli", "up", "--port", str(free_port())]
    env = {**os.environ, "FOREWARN_DATA": str(command.data), "FORCE_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "Ctrl-C stops it" not in process.stdout.readline():
            assert process.poll() is None
        command.good("restart", "web-0")
        process.send_signal(number)
        assert process.stdout.read().endswith("stopped; all data is kept, 1 event pending\n")
        assert process.wait(60) == 0


def test_a_bad_setting_is_refused_before_anything_starts(command: Any) -> None:
    assert "needs an address that VMs call: give --listen" in command.refused("serve")
    assert "cannot be read" in command.refused("up", "--config", "/nowhere/settings.toml")


def test_a_stopped_service_tells_a_terminal_which_programs_still_run(command: Any) -> None:
    records = SupervisorRecords(command.data / "vms")
    with subprocess.Popen(["sleep", "600"]) as program:
        try:
            records.save(SupervisorRecord(vm="sub/lab/web-0", pid=program.pid, started=process_start_time(program.pid)))
            arguments = [sys.executable, "-m", "forewarn.cli", "up", "--port", str(free_port())]
            env = {**os.environ, "FOREWARN_DATA": str(command.data), "FORCE_COLOR": "1", "PYTHONUNBUFFERED": "1"}
            with subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                while "Ctrl-C stops it" not in process.stdout.readline():
                    assert process.poll() is None
                process.send_signal(signal.SIGTERM)
                message = process.stdout.read()
            assert message.endswith(f"1 program in VMs still runs; to stop: kill {program.pid}\n")
        finally:
            program.kill()
