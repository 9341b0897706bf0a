"""The agent as people run it: a process, its pages and its commands, against a whole service in virtual time."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forewarn.lab import Lab

SOURCE = Path(__file__).parents[2] / "src"
FILE = """
listen = "127.0.0.1:PORT"
state = "FOLDER/state"

[steps.away]
use = "readiness"
budget = "20s"

[steps.mark]
use = "command"
run = ["/bin/sh", "-c", "echo $FOREWARN_KIND >> FOLDER/done"]
undo = ["/bin/sh", "-c", "echo $FOREWARN_KIND >> FOLDER/undone"]
budget = "1m"

[[rules]]
steps = ["away", "mark"]
approve = "when-done"
"""


class Place:
    """A file for an agent with a port of its own, and what its pages say."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.folder, self.file = folder, folder / "agent.toml"
        self.file.write_text(FILE.replace("PORT", str(self.port)).replace("FOLDER", str(folder)))

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "forewarn", "agent", *words, "--config", str(self.file)]

    def said(self, *words: str) -> str:
        return subprocess.run(self.words(*words), capture_output=True, text=True, timeout=60, check=True).stdout

    def page(self, path: str) -> tuple[int, bytes]:
        """(0, b"") while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except ConnectionError:
            return 0, b""
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        (value,) = re.findall(rf"(?m)^forewarn_agent_{re.escape(name)} (\S+)$", self.page("/metrics")[1].decode())
        return float(value)

    def has_answered(self) -> bool:
        return self.page("/health")[0] == 200 and self.metric('polls_total{outcome="answered"}') > 0

    @contextmanager
    def running(self, lab: Lab, vm: str = "web-0") -> Iterator[subprocess.Popen[str]]:
        words = self.words("run", "--endpoint", lab.vm(vm).endpoint)
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as agent:
            try:
                lab.wait_for(lambda: agent.poll() is not None or self.has_answered(), within="20s")
                yield agent
            finally:
                if agent.poll() is None:
                    agent.kill()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def ends(agent: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
    agent.send_signal(number)
    _, told = agent.communicate(timeout=20)
    return agent.returncode, told


def test_a_reboot_is_prepared_approved_undone_and_explained(place: Place) -> None:
    with Lab(vms=["web-0"]) as lab, place.running(lab) as agent:
        assert place.page("/ready")[0] == 200
        assert place.metric("in_maintenance") == 0
        event = lab.reboot("web-0")
        lab.wait_for(lambda: event.approved)
        assert place.page("/ready")[0] == 503
        assert place.metric("in_maintenance") == 1
        state: dict[str, Any] = json.loads(place.said("status", "--json"))
        assert (state["running"], state["vm"], state["ready"]) == (True, "web-0", False)
        assert [step["do"]["state"] for step in state["events"][0]["steps"]] == ["done", "done"]

        lab.wait_for(lambda: place.metric('notice_got_seconds_count{kind="Reboot"}') == 1)
        lab.run_until(lambda: event.over)
        lab.wait_for(lambda: place.page("/ready")[0] == 200)
        lab.wait_for(lambda: place.metric("in_maintenance") == 0)
        assert place.metric('approvals_total{kind="Reboot"}') == 1
        assert place.metric('notice_promised_seconds_count{kind="Reboot"}') == 1
        assert place.metric('events_gone_total{kind="Reboot",outcome="finished"}') == 1
        assert place.metric('step_duration_seconds_count{outcome="done",phase="undo",step="mark"}') == 1
        code, _ = ends(agent)

    assert code == 0
    assert (place.folder / "done").read_text() == (place.folder / "undone").read_text() == "Reboot\n"
    story = place.said("explain", state["events"][0]["key"])
    for part in ("first seen, a notice of 15m", "mark done after", "approved", "started, after", "undo of away done"):
        assert part in story
    assert story.splitlines()[-1] == "now  closed: nothing left to do"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_that_is_told_to_stop_ends_at_once_and_well(place: Place, number: int) -> None:
    with Lab(vms=["web-0"]) as lab, place.running(lab) as agent:
        code, said = ends(agent, number)
    assert code == 0
    assert said.splitlines() == [
        f"INFO the agent runs; steps: away, mark; pages: http://127.0.0.1:{place.port}",
        "INFO the endpoint answers",
    ]
    assert "stopped, according to its journal" in place.said("status")


def test_readiness_stays_held_when_the_agent_is_killed_and_started_again(place: Place) -> None:
    with Lab(vms=["web-0"]) as lab:
        with place.running(lab) as agent:
            lab.reboot("web-0", notice="1h")
            lab.wait_for(lambda: place.page("/ready")[0] == 503)
            agent.kill()
        with place.running(lab):
            assert place.page("/ready")[0] == 503


def test_a_second_agent_with_the_same_journal_is_refused(place: Place) -> None:
    with Lab(vms=["web-0"]) as lab, place.running(lab):
        words = place.words("run", "--endpoint", lab.vm("web-0").endpoint)
        second = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert second.returncode == 2
    assert "is in use by another agent" in second.stderr


def test_an_address_that_is_taken_does_not_keep_the_agent_from_its_work(place: Place) -> None:
    with Lab(vms=["web-0"]) as lab, socket.socket() as taken:
        taken.bind(("127.0.0.1", place.port))
        words = place.words("run", "--endpoint", lab.vm("web-0").endpoint)
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as agent:
            try:
                event = lab.reboot("web-0")
                lab.wait_for(lambda: event.approved, within="20s")
                code, told = ends(agent)
            finally:
                agent.kill()
    assert code == 0
    assert f"the agent cannot listen on 127.0.0.1:{place.port}" in told


def test_an_agent_may_look_once_and_end(place: Place) -> None:
    with Lab(vms=["web-0"]) as lab:
        event = lab.reboot("web-0")
        words = place.words("run", "--once", "--endpoint", lab.vm("web-0").endpoint)
        assert subprocess.run(words, timeout=60).returncode == 0
        assert event.approved_by == "web-0"
    assert (place.folder / "done").read_text() == "Reboot\n"


def test_an_agent_that_cannot_begin_says_why(place: Place) -> None:
    bad = place.folder / "bad.toml"
    bad.write_text(place.file.read_text().replace(f"127.0.0.1:{place.port}", "nowhere"))
    words = [sys.executable, "-m", "forewarn", "agent", "run", "--config", str(bad)]
    after = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert after.returncode == 2
    assert "is not an address" in after.stderr
    assert "Traceback" not in after.stderr


def test_an_agent_without_its_extra_says_what_to_install_or_to_leave_out(place: Place) -> None:
    start = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from forewarn.agent.__main__ import main; sys.exit(main())"
    )
    words = [
        sys.executable,
        "-S",
        "-c",
        start,
        str(SOURCE),
        "--config",
        str(place.file),
    ]  # -S: nothing that pip installed
    after = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert after.returncode == 2
    assert after.stderr == (
        "the agent's pages need prometheus_client, which is not installed: pip install 'forewarn[agent]', "
        'or set listen = ""\n'
    )


def test_the_process_is_without_what_the_command_line_needs(place: Place) -> None:
    with Lab(vms=["web-0"]) as lab, place.running(lab) as agent:
        words = Path(f"/proc/{agent.pid}/cmdline").read_bytes().split(b"\0")
        assert words[1:4] == [b"-P", b"-m", b"forewarn.agent"]
    loaded = "import sys, forewarn.agent.__main__, forewarn.agent.http_pages; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, timeout=60)
    assert not {"click", "rich", "msgspec"} & set(modules.stdout.split())
