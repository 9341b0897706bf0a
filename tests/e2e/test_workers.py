"""A service whose worker processes answer VMs behaves as one process does."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forewarn.base.times import parse_time
from tests.support.service_process import HttpAnswer, ServiceProcess, eventually, free_port

FLEET = """
[[hosts]]
name = "host-{n}"
count = 4

[[availability_sets]]
name = "db"

[[vms]]
name = "db-{n}"
count = 3
availability_set = "db"

[[vms]]
name = "solo"
"""
NETWORK = """
[[hosts]]
name = "host-{n}"
count = 2

[[vms]]
name = "web-{n}"
count = 2
address = "127.0.0.21"
"""
WORKERS = ("--workers", "2")
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2019-08-01&format=text"
METADATA = {"Metadata": "true"}
ROUNDS = 12  # new connections: enough to reach every worker


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=WORKERS) as running:
        yield running


def workers(service: ServiceProcess) -> list[int]:
    """The pids of the workers that are ready now."""
    return [worker["pid"] for worker in service.api("GET", "/service").json["workers"] if worker["ready"]]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def connect_to_each(service: ServiceProcess, vm: str) -> dict[int, http.client.HTTPConnection]:
    """An open connection to each worker, by its pid."""
    found: dict[int, http.client.HTTPConnection] = {}
    pids = workers(service)
    for _ in range(500):
        connection = service.connect(service.endpoint(vm))
        connection.connect()
        assert poll_on(connection).status == 200
        pid = holder_of(connection, pids)
        if pid in found:
            connection.close()
        else:
            found[pid] = connection
        if len(found) == len(pids):
            return found
    raise AssertionError(f"only {list(found)} of {pids} ever accept")


def holder_of(connection: http.client.HTTPConnection, pids: list[int]) -> int:
    """The pid of the worker that has the other end of a connection."""
    ours = connection.sock.getsockname()
    ours_spelled = f"{int.from_bytes(bytes(map(int, ours[0].split('.'))), 'little'):08X}:{ours[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines():
        columns = line.split()
        if columns[2] == ours_spelled and columns[9] != "0":
            for pid in pids:
                if f"socket:[{columns[9]}]" in links_of(pid):
                    return pid
    raise AssertionError("nobody has the other end")


def links_of(pid: int) -> set[str]:
    links = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.add(str(path.readlink()))
        except OSError:
            continue
    return links


def poll_on(connection: http.client.HTTPConnection, target: str = TARGET, **headers: str) -> HttpAnswer:
    connection.request("GET", target, headers=METADATA | headers)
    response = connection.getresponse()
    return HttpAnswer(response.status, response.read(), dict(response.getheaders()))


def close(connections: dict[int, http.client.HTTPConnection]) -> None:
    for connection in connections.values():
        connection.close()


def test_every_worker_shows_an_event_as_soon_as_its_request_is_answered(
    service: ServiceProcess, ask: Callable[..., str]
) -> None:
    assert len(workers(service)) == 2
    connections = connect_to_each(service, "db-0")
    event_id = ask(service, "restart", "db-0")
    for connection in connections.values():
        document = poll_on(connection).json
        assert [event["EventId"] for event in document["Events"]] == [event_id]
    close(connections)
    for _ in range(ROUNDS):
        assert [service.guest(vm, "GET", NAME).body.decode() for vm in ("db-1", "solo")] == ["db-1", "solo"]
        assert service.poll("solo")["Events"] == []


def test_an_approval_is_durable_in_every_worker_and_an_invalid_one_is_refused(
    service: ServiceProcess, ask: Callable[..., str]
) -> None:
    """Spec §5.2."""
    event_id = ask(service, "restart", "db-0")
    refused = service.approve("solo", event_id)
    assert (refused.status, refused.json) == (400, {"error": f"Bad request. Unknown EventId: {event_id}"})
    assert service.approve("db-1", event_id).status == 200
    assert service.api("GET", f"/events/{event_id}").json["approved_by"] == "db-1"
    service.kill()
    service.start()
    assert service.api("GET", f"/events/{event_id}").json["approved_by"] == "db-1"


def test_long_polls_wake_in_every_worker_and_are_answered_when_the_service_stops(
    service: ServiceProcess, ask: Callable[..., str]
) -> None:
    """Spec §4.4."""
    connections = connect_to_each(service, "db-0")
    etag = poll_on(next(iter(connections.values()))).headers["ETag"]
    given = [Held(service, connection, etag) for connection in connections.values()]
    event_id = ask(service, "restart", "db-1")
    for held in given:
        answer = held.end()
        assert (answer.status, answer.headers["Preference-Applied"]) == (200, "wait=30")
        assert [event["EventId"] for event in answer.json["Events"]] == [event_id]
        etag = answer.headers["ETag"]

    given = [Held(service, connection, etag) for connection in connections.values()]
    pids = [service.pid, *workers(service)]
    os.kill(service.pid, signal.SIGTERM)
    assert [held.end().status for held in given] == [304, 304]
    assert service.stop() == 0
    assert not any(map(is_alive, pids))
    close(connections)


class Held:
    """A long poll on a connection; constructed once the service has received it."""

    def __init__(self, service: ServiceProcess, connection: http.client.HTTPConnection, etag: str) -> None:
        self._connection, self._etag = connection, etag
        self._answer: HttpAnswer | None = None
        self._thread = threading.Thread(target=self._wait)
        before = polls_of(service, "db-0")
        self._thread.start()
        eventually(lambda: polls_of(service, "db-0") > before)

    def _wait(self) -> None:
        self._answer = poll_on(self._connection, **{"If-None-Match": self._etag, "Prefer": "wait=30"})

    def end(self) -> HttpAnswer:
        self._thread.join(timeout=60)
        assert self._answer is not None
        return self._answer


def polls_of(service: ServiceProcess, vm: str) -> int:
    polls: int = service.api("GET", f"/vms/{vm}").json["polls"]
    return polls


def test_requests_are_counted_over_all_workers_and_none_is_lost_when_they_stop(service: ServiceProcess) -> None:
    connections = connect_to_each(service, "db-0")
    before = polls_of(service, "solo")
    for _ in range(ROUNDS):
        service.poll("solo")
    assert service.stop() == 0
    service.start()
    assert polls_of(service, "solo") == before + ROUNDS
    close(connections)


def test_a_killed_worker_is_replaced_and_no_request_is_refused_meanwhile(service: ServiceProcess) -> None:
    first, second = workers(service)
    os.kill(first, signal.SIGKILL)
    for _ in range(ROUNDS):
        assert service.poll("solo")["Events"] == []
    eventually(lambda: len(workers(service)) == 2)
    assert first not in workers(service)
    assert second in workers(service)
    close(connect_to_each(service, "solo"))
    assert f"(process {first}) ended unexpectedly: another one starts now" in service.log.read_text()


def test_a_terminated_worker_answers_held_requests_and_is_replaced(
    service: ServiceProcess,
) -> None:
    connections = connect_to_each(service, "db-0")
    pid, connection = next(iter(connections.items()))
    held = Held(service, connection, poll_on(connection).headers["ETag"])
    os.kill(pid, signal.SIGTERM)
    assert held.end().status == 304
    eventually(lambda: len(workers(service)) == 2 and pid not in workers(service))
    eventually(lambda: not is_alive(pid))
    close(connections)


def test_a_killed_service_leaves_no_worker_behind_and_restarts_at_once(service: ServiceProcess) -> None:
    pids = workers(service)
    service.kill()
    eventually(lambda: not any(map(is_alive, pids)), within_s=5)
    service.start()
    assert service.poll("solo")["Events"] == []


def test_workers_do_not_answer_approvals_for_a_service_that_hangs(
    service: ServiceProcess, ask: Callable[..., str]
) -> None:
    """Approvals on open connections get 503; new connections wait until the service is back."""
    connections = connect_to_each(service, "db-0")
    connection = next(iter(connections.values()))
    event_id = ask(service, "restart", "db-0")
    warning = "has been silent for 1 s: accepting no connections until it answers"
    os.kill(service.pid, signal.SIGSTOP)
    try:
        eventually(lambda: service.log.read_text().count(warning) == 2)
        body = f'{{"StartRequests": [{{"EventId": "{event_id}"}}]}}'
        connection.request("POST", TARGET, body, METADATA)
        response = connection.getresponse()
        assert (response.status, response.read()[:32]) == (503, b'{ "error": "Service unavailable.')
        assert poll_on(connection).status == 200
        late = service.connect(service.endpoint("solo"))
        late.request("GET", TARGET, headers=METADATA)
    finally:
        os.kill(service.pid, signal.SIGCONT)
    assert late.getresponse().status == 200
    assert service.approve("db-0", event_id).status == 200
    late.close()
    close(connections)


def test_a_fault_with_a_count_affects_exactly_that_many_concurrent_requests(
    service: ServiceProcess,
) -> None:
    """Spec §11."""
    connections = connect_to_each(service, "solo")
    assert service.forewarn("fault", "set", "internal-error", "--vm", "solo", "--count", "60").returncode == 0
    seen: list[int] = []

    def ask_often(connection: http.client.HTTPConnection) -> None:
        for _ in range(60):
            seen.append(poll_on(connection).status)

    callers = [threading.Thread(target=ask_often, args=(connection,)) for connection in connections.values()]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    close(connections)
    assert Counter(seen) == {500: 60, 200: 60}
    eventually(lambda: service.api("GET", "/faults").json["faults"] == [])


def test_every_worker_follows_the_labs_clock(service: ServiceProcess, ask: Callable[..., str]) -> None:
    """Spec §12: Date headers, and what depends on time."""
    connections = connect_to_each(service, "db-0")
    event_id = ask(service, "restart", "db-0")
    service.advance(3 * 24 * 3600)
    for connection in connections.values():
        assert all(event["EventId"] != event_id for event in poll_on(connection).json["Events"])
        now = parse_time(service.api("GET", "/clock").json["now"])
        assert abs(read_date(poll_on(connection).headers["Date"]) - now) < 5
    close(connections)


def read_date(text: str) -> float:
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(text).timestamp()


def test_workers_serve_one_port_per_vm(tmp_path: Path) -> None:
    with ServiceProcess(
        data=tmp_path, fleet=FLEET, port=free_port(8), arguments=(*WORKERS, "--one-port-per-vm")
    ) as lab:
        names = ["db-0", "db-1", "db-2", "solo"]
        assert [lab.guest(name, "GET", NAME).body.decode() for name in names * 3] == names * 3


def test_workers_serve_a_network_and_the_first_poll_enables_the_scope(tmp_path: Path) -> None:
    """Spec §8.1."""
    with ServiceProcess(data=tmp_path, fleet=NETWORK, command="serve", arguments=WORKERS) as network:
        for _ in range(ROUNDS):
            assert network.poll("web-1") == {"DocumentIncarnation": 1, "Events": []}
        history = network.api("GET", "/history").json["entries"]
        assert [entry["kind"] for entry in history].count("enabled") == 1
        checks = network.api("GET", "/doctor").json["checks"]
        [workers] = [check for check in checks if check["name"] == "workers"]
        assert {"ok": True, "text": "2 of 2 workers answer VMs"}.items() <= workers.items()


def test_a_port_in_use_stops_the_start_of_workers_too(service: ServiceProcess, tmp_path: Path) -> None:
    other = ServiceProcess(data=tmp_path / "other", fleet=FLEET, port=service.port, arguments=WORKERS)
    with pytest.raises(AssertionError, match="is in use by another program"), other:
        pass


def test_a_worker_that_dies_repeatedly_is_replaced_after_a_delay(service: ServiceProcess) -> None:
    for _ in range(2):
        victim = eventually(lambda: len(workers(service)) == 2 and workers(service)[0])
        os.kill(victim, signal.SIGKILL)
        eventually(lambda victim=victim: victim not in workers(service))  # type: ignore[misc]
    eventually(lambda: "another one starts in 0.5 s" in service.log.read_text())
    assert service.poll("solo")["Events"] == []
    eventually(lambda: len(workers(service)) == 2)


class Poller(threading.Thread):
    """A VM that polls without a pause and notes incarnations that went back on one connection."""

    def __init__(self, service: ServiceProcess, vm: str, over: threading.Event) -> None:
        super().__init__()
        self.polls = 0
        self.refused: list[str] = []
        self.went_back: list[tuple[int, int]] = []
        self._service, self._vm, self._over = service, vm, over

    def run(self) -> None:
        while not self._over.is_set():
            connection = self._service.connect(self._service.endpoint(self._vm))
            try:
                connection.connect()
            except OSError as error:
                self.refused.append(str(error))
                continue
            try:
                self._poll(connection)
            except (OSError, http.client.HTTPException):
                pass  # its worker was killed
            finally:
                connection.close()

    def _poll(self, connection: http.client.HTTPConnection) -> None:
        shown = 0
        for _ in range(50):
            if self._over.is_set():
                return
            incarnation = poll_on(connection).json["DocumentIncarnation"]
            if incarnation < shown:
                self.went_back.append((shown, incarnation))
            shown = incarnation
            self.polls += 1


def test_while_workers_die_no_request_is_refused_and_no_incarnation_goes_back(
    service: ServiceProcess, ask: Callable[..., str]
) -> None:
    """Spec §4.2, on each connection."""
    over = threading.Event()
    service.endpoint("db-0")
    pollers = [Poller(service, f"db-{number % 3}", over) for number in range(6)]
    for poller in pollers:
        poller.start()
    try:
        for number in range(40):
            event_id = ask(service, "restart", f"db-{number % 3}")
            if number % 13 == 7:
                os.kill(eventually(lambda: workers(service))[0], signal.SIGKILL)
            assert service.api("POST", f"/events/{event_id}/withdraw", {}).status == 200
    finally:
        over.set()
        for poller in pollers:
            poller.join(timeout=60)
    assert all(poller.polls > 50 for poller in pollers)
    assert [poller.went_back for poller in pollers] == [[]] * len(pollers)
    assert [poller.refused for poller in pollers] == [[]] * len(pollers)
    incarnation = service.poll("db-0")["DocumentIncarnation"]
    assert incarnation == 81  # every change was counted once
    for _ in range(ROUNDS):
        assert service.poll("db-1")["DocumentIncarnation"] == incarnation


class PatientPoller(threading.Thread):
    """A VM that polls without a pause, and opens a connection only if the last answer closed it."""

    def __init__(self, service: ServiceProcess, vm: str, over: threading.Event) -> None:
        super().__init__()
        self.polls = 0
        self.failures: list[str] = []
        self._connection, self._over = service.connect(service.endpoint(vm)), over

    def run(self) -> None:
        while not self._over.is_set():
            try:
                assert poll_on(self._connection).status == 200
                self.polls += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                self._connection.close()
        self._connection.close()


def wait_until_replaced(service: ServiceProcess, pids: list[int]) -> None:
    eventually(lambda: len(workers(service)) == 2 and not set(pids) & set(workers(service)))
    eventually(lambda: not any(map(is_alive, pids)))


def test_no_poll_is_lost_when_workers_are_ended_in_order_or_reloaded(service: ServiceProcess) -> None:
    """A poll that is on its way to an idle connection is answered before the connection closes."""
    over = threading.Event()
    pollers = [PatientPoller(service, f"db-{number % 3}", over) for number in range(8)]
    for poller in pollers:
        poller.start()
    try:
        first = workers(service)
        os.kill(service.pid, signal.SIGHUP)
        wait_until_replaced(service, first)
        victim = workers(service)[0]
        os.kill(victim, signal.SIGTERM)
        wait_until_replaced(service, [victim])
    finally:
        over.set()
        for poller in pollers:
            poller.join(timeout=60)
    assert [poller.failures for poller in pollers] == [[]] * len(pollers)
    assert all(poller.polls > 50 for poller in pollers)


PROGRAM = '\n[[vms]]\nname = "busy"\nprogram = ["true"]\n'
TRAP = "import pathlib; pathlib.Path(__file__).with_name('ran').touch(); raise SystemExit('not this one')"


def test_modules_in_the_current_directory_are_never_run(tmp_path: Path) -> None:
    """Not by a worker, a VM's supervisor or an agent, which are separate processes."""
    here, fleet, port = tmp_path / "here", tmp_path / "fleet.toml", free_port()
    here.mkdir()
    (here / "forewarn.py").write_text(TRAP)
    (here / "agent.toml").write_text(f'listen = ""\nstate = "{tmp_path}"\n[[rules]]\nsteps = []\napprove = "never"\n')
    fleet.write_text(FLEET + PROGRAM)
    line = [sys.executable, "-P", "-m", "forewarn", "--data", str(tmp_path / "data")]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*line, *arguments], cwd=here, capture_output=True, text=True, timeout=60)

    up = ["up", "--port", str(port), "--fleet", str(fleet), "--workers", "1", "--api", ""]
    child = subprocess.Popen([*line, *up], cwd=here, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: "of busy ended with code 0" in run("history").stdout or child.poll() is not None)
        agent = run("agent", "run", "--once", "--config", "agent.toml", "--endpoint", f"http://127.0.0.1:{port}")
        assert agent.returncode == 0
        assert re.fullmatch(r"[-0-9]{10} [0-9:,]{12} INFO the endpoint answers\n", agent.stderr)
    finally:
        child.terminate()
        assert child.wait(60) == 0
    assert not (here / "ran").exists()
