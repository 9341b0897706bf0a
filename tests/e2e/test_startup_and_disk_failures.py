"""Failing starts and full disks: one sentence with a remedy, and nothing is lost."""

from __future__ import annotations

import os
import resource
import socket
import sqlite3
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from forewarn.auth.certificates import ServiceCertificates
from forewarn.base.times import parse_time
from tests.support.service_process import ServiceProcess, eventually, free_port, run_forewarn

FLEET = """
[[hosts]]
name = "host-{n}"
count = 3

[[vms]]
name = "web-{n}"
count = 2
"""
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
SIMULATED = ("--hypervisor", "simulated")


def start_error(data: Path, *arguments: str, **environment: str) -> str:
    """The one sentence that a failing start prints."""
    done = run_forewarn(data, *arguments, environment=environment)
    assert (done.returncode, done.stdout) == (2, ""), done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_second_service_on_the_same_data_is_refused_and_names_the_first_process(tmp_path: Path, command: str) -> None:
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        place = (
            [*SIMULATED, "--listen", f"127.0.0.1:{free_port()}"] if command == "serve" else ["--port", str(free_port())]
        )
        message = start_error(tmp_path, command, *place)
        assert f"(process {service.pid})" in message
        assert "stop that one first, or name another directory with --data" in message
        assert service.poll("web-0") == {"DocumentIncarnation": 1, "Events": []}, "the first one is not disturbed"


def test_a_killed_process_does_not_keep_its_data_locked(tmp_path: Path) -> None:
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        service.kill()
        service.start()
        assert service.poll("web-0")["Events"] == []


def test_a_service_whose_clock_is_before_its_certificate_serves_its_vms(tmp_path: Path) -> None:
    ServiceCertificates.load_or_create(tmp_path / "tls", (), time.time() + 30 * 86400)
    console = free_port()
    fleet = FLEET + 'address = "127.0.0.2"\n'
    environment = {"FOREWARN_API": f"127.0.0.1:{console}"}
    service = ServiceProcess(
        data=tmp_path, fleet=fleet, command="serve", arguments=("--new-store",), environment=environment
    )
    with service:
        assert service.poll("web-0")["Events"] == []
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", console)) as sock, unverified.wrap_socket(sock) as connection:
            assert connection.version() == "TLSv1.3"
        log = eventually(lambda: service.log.read_text())
        assert "VMs are served, but clients do not trust the API now: certificate" in log
        assert "is not valid before" in log


def put_garbage(database: Path) -> None:
    database.write_bytes(b"not a database at all\n" * 400)


def cut_off(database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2)


def scribble(database: Path) -> None:
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 3 * 4096)


def put_another_programs(database: Path) -> None:
    database.unlink()
    with closing(sqlite3.connect(database)) as db:
        db.executescript("PRAGMA application_id = 4711; CREATE TABLE songs (title TEXT)")


def put_a_newer_one(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
        db.commit()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The database of a service that was stopped."""
    data = tmp_path_factory.mktemp("sound")
    with ServiceProcess(data=data, fleet=FLEET) as service:
        assert service.stop() == 0
    return (data / "forewarn.db").read_bytes()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (put_garbage, "is not an SQLite database"),
        (cut_off, "is damaged"),
        (scribble, "is damaged"),
        (put_another_programs, "belongs to another program (application id 4711)"),
        (put_a_newer_one, "has schema revision 9999, unknown to this forewarn"),
    ],
    ids=["garbage", "truncated", "scribbled on", "of another program", "newer"],
)
def test_a_broken_database_is_named_and_left_unchanged(
    tmp_path: Path, sound: bytes, damage: Callable[[Path], None], expected: str
) -> None:
    database = tmp_path / "forewarn.db"
    database.write_bytes(sound)
    damage(database)
    before = database.read_bytes()

    message = start_error(tmp_path, "up", "--port", str(free_port()))

    assert str(database) in message
    assert expected in message
    assert "left as it is" in message
    assert database.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} <= {"forewarn.db", "lock"}, "nothing is left beside it"


def test_a_data_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = start_error(tmp_path / "file" / "data", "up")
    assert f"data directory '{tmp_path}/file/data' cannot be used: Not a directory" in message
    assert "name another with --data" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_data_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    message = start_error(tmp_path, "up")
    tmp_path.chmod(0o700)
    assert f"data directory '{tmp_path}' cannot be used: Permission denied" in message


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    message = start_error(tmp_path / ("d" * 100), "up", "--port", str(free_port()))
    assert "name a data directory with a shorter path" in message


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_port_in_use_stops_the_start_and_is_named(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = [*SIMULATED, "--listen", f"127.0.0.1:{port}"] if command == "serve" else ["--port", str(port)]
        message = start_error(tmp_path, command, *place)
    assert f":{port} is in use by another program: stop it, or set another" in message


def test_port_numbers_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    message = start_error(tmp_path, "up", "--one-port-per-vm", "--port", "65534")
    assert message == "port 65536, which a VM would need, does not exist: set a lower 'port'"


def test_an_address_of_another_machine_is_named(tmp_path: Path) -> None:
    message = start_error(tmp_path, "serve", *SIMULATED, "--listen", "192.0.2.7:8000")
    assert "cannot listen on 192.0.2.7:8000: this machine does not have the address 192.0.2.7" in message


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve"], "give --listen ADDRESS:PORT, or start a lab with `forewarn up`"),
        (["serve", "--listen", "127.0.0.1:8000"], "setting 'hypervisor' is missing, so nothing would perform the acts"),
        (["serve", "--listen", "localhost:8000"], "cannot listen on 'localhost:8000': write ADDRESS:PORT in numbers"),
        (["up", "--port", "70000"], "70000 is not in the range 1<=x<=65535"),
        (["up", "--prot", "7000"], "--prot"),
        (["up", "--fleet", "/nowhere/fleet.toml"], "'/nowhere/fleet.toml' cannot be read (No such file or directory)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_invalid_option_is_refused(tmp_path: Path, arguments: list[str], expected: str) -> None:
    assert expected in start_error(tmp_path / "data", *arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start_grace = 5\n", "setting 'start_grace' does not exist: did you mean 'start_grace_s'?"),
        ("listen = ['nowhere']\n", "cannot listen on 'nowhere': write ADDRESS:PORT"),
        ("[[simulate]]\nthen = 'explode'\n", "explode"),
    ],
    ids=lambda value: value.splitlines()[-1] if value.endswith("\n") else "",
)
def test_an_invalid_settings_file_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "settings.toml").write_text(text)
    message = start_error(tmp_path / "data", "up", "--config", str(tmp_path / "settings.toml"))
    assert expected in message


def test_an_invalid_environment_variable_is_refused(tmp_path: Path) -> None:
    message = start_error(tmp_path / "data", "up", FOREWARN_PORT="http")
    assert "setting 'port': expected `int`, got `str`" in message


def test_an_invalid_fleet_file_is_refused_line_by_line_and_nothing_is_stored(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("[[vms]]\nname = 'a'\nzone = 3\ncolour = 'red'\n")
    done = run_forewarn(tmp_path / "data", "up", "--fleet", str(tmp_path / "fleet.toml"), "--port", str(free_port()))
    assert (done.returncode, done.stdout) == (2, "")
    assert "fleet.toml:4" in done.stderr
    with ServiceProcess(data=tmp_path / "data", fleet=FLEET) as service:
        assert [vm["name"] for vm in service.api("GET", "/fleet").json["vms"]] == ["web-0", "web-1"]


@contextmanager
def full_disk(service: ServiceProcess) -> Iterator[None]:
    """Simulate a full disk: no byte can be written to any file."""
    old = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (0, old[1]))
    try:
        yield
    finally:
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, old)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process: Linux only")
def test_on_a_full_disk_approvals_get_503_polls_work_and_it_recovers(tmp_path: Path, ask: Callable[..., str]) -> None:
    """Spec §10: POST gets 503 with Retry-After, GET works from memory; §5.3: a 200 is durable."""
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        event_id = ask(service, "restart", "web-0")
        with full_disk(service):
            for _ in range(3):
                refused = service.approve("web-0", event_id)
                assert refused.status == 503
                assert int(refused.headers["Retry-After"]) > 0
            document = service.poll("web-0")
            assert [(e["EventId"], e["EventStatus"]) for e in document["Events"]] == [(event_id, "Scheduled")]
            assert service.poll("web-1") == {"DocumentIncarnation": 1, "Events": []}
            asked = service.api("POST", "/requests", {"operation": "restart", "vms": ["web-1"]})
            assert (asked.status, asked.json["error"]["code"]) == (503, "Unavailable")
            assert service.api("GET", "/service").status == 200
            assert service.is_running

        assert service.approve("web-0", event_id).status == 200
        assert service.api("GET", f"/events/{event_id}").json["approved_by"] == "web-0"
        service.kill()
        service.start()
        assert service.api("GET", f"/events/{event_id}").json["approved_by"] == "web-0"
        service.advance(3600)
        assert service.poll("web-0")["Events"] == []
        assert service.api("GET", "/events?all=true&vm=web-1").json["events"] == [], "what was refused left nothing"


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process: Linux only")
def test_an_event_that_becomes_due_on_a_full_disk_starts_once_there_is_space(
    tmp_path: Path, ask: Callable[..., str]
) -> None:
    """The reconciler retries: the event starts later, and is performed once."""
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        event_id = ask(service, "restart", "web-0")
        assert service.api("POST", "/clock/speed", {"speed": 2000}).status == 200
        with full_disk(service):
            over = parse_time(service.api("GET", f"/events/{event_id}").json["not_before"]) + 60
            eventually(lambda: parse_time(service.api("GET", "/clock").json["now"]) > over)
            assert service.poll("web-0")["Events"][0]["EventStatus"] == "Scheduled"
        eventually(lambda: service.poll("web-0")["Events"] == [])
        acts = service.api("GET", f"/events/{event_id}").json["acts"]
        assert [(act["vm"], act["ok"]) for act in acts] == [("web-0", True)]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process: Linux only")
def test_a_service_can_be_stopped_while_the_disk_is_full(tmp_path: Path, ask: Callable[..., str]) -> None:
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        event_id = ask(service, "restart", "web-0")
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        assert service.stop() == 0
        service.start()
        assert service.poll("web-0")["Events"][0]["EventId"] == event_id
