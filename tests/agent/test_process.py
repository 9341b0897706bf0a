"""The agent as a process, with its pages and commands, against a service in virtual time."""

import http.client
import json
import os
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


class AgentInstallation:
    """A configuration file for an agent with its own port, and access to its commands and pages."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.folder, self.file = folder, folder / "agent.toml"
        self.file.write_text(FILE.replace("PORT", str(self.port)).replace("FOLDER", str(folder)))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "forewarn", "agent", *arguments, "--config", str(self.file)]

    def output(self, *arguments: str) -> str:
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=60, check=True).stdout

    def page(self, path: str) -> tuple[int, bytes]:
        """Status and body of a page; (0, b"") while the agent does not listen."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
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
        arguments = self.command("run", "--endpoint", lab.vm(vm).endpoint)
        environment = {**os.environ, "JOURNAL_STREAM": "8:1"}  # as under systemd, whose journal has the times
        with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment) as agent:
            try:
                lab.wait_for(lambda: agent.poll() is not None or self.has_answered())
                yield agent
            finally:
                if agent.poll() is None:
                    agent.kill()


@pytest.fixture
def installation(tmp_path: Path) -> AgentInstallation:
    return AgentInstallation(tmp_path)


def stop_agent(agent: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
    agent.send_signal(number)
    _, log = agent.communicate(timeout=60)
    return agent.returncode, log


def test_a_reboot_is_prepared_approved_undone_and_explained(installation: AgentInstallation) -> None:
    with Lab(vms=["web-0"]) as lab, installation.running(lab) as agent:
        assert installation.page("/ready")[0] == 200
        assert installation.metric("in_maintenance") == 0
        event = lab.reboot("web-0")
        lab.wait_for(lambda: event.approved)
        assert installation.page("/ready")[0] == 503
        assert installation.metric("in_maintenance") == 1
        state: dict[str, Any] = json.loads(installation.output("status", "--json"))
        assert (state["running"], state["vm"], state["ready"]) == (True, "web-0", False)
        assert [step["do"]["state"] for step in state["events"][0]["steps"]] == ["done", "done"]

        lab.wait_for(lambda: installation.metric('notice_given_seconds_count{kind="Reboot"}') == 1)
        lab.run_until(lambda: event.over)
        lab.wait_for(lambda: installation.page("/ready")[0] == 200)
        lab.wait_for(lambda: installation.metric("in_maintenance") == 0)
        assert installation.metric('approvals_total{kind="Reboot"}') == 1
        assert installation.metric('notice_promised_seconds_count{kind="Reboot"}') == 1
        assert installation.metric('events_gone_total{kind="Reboot",outcome="finished"}') == 1
        assert installation.metric('step_duration_seconds_count{outcome="done",phase="undo",step="mark"}') == 1
        code, _ = stop_agent(agent)

    assert code == 0
    assert (installation.folder / "done").read_text() == (installation.folder / "undone").read_text() == "Reboot\n"
    explanation = installation.output("explain", state["events"][0]["key"])
    for part in ("first seen, a notice of 15m", "mark done after", "approved", "started, after", "undo of away done"):
        assert part in explanation
    assert explanation.splitlines()[-1] == "now  closed: nothing left to do"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_that_gets_a_stop_signal_ends_at_once_with_status_0(
    installation: AgentInstallation, number: int
) -> None:
    with Lab(vms=["web-0"]) as lab, installation.running(lab) as agent:
        code, log = stop_agent(agent, number)
    assert code == 0
    assert log.splitlines() == [
        f"INFO the agent runs; steps: away, mark; pages: http://127.0.0.1:{installation.port}",
        "INFO the endpoint answers",
    ]
    assert "stopped, according to its journal" in installation.output("status")


def test_the_vm_stays_not_ready_when_the_agent_is_killed_and_restarted(installation: AgentInstallation) -> None:
    with Lab(vms=["web-0"]) as lab:
        with installation.running(lab) as agent:
            lab.reboot("web-0", notice="1h")
            lab.wait_for(lambda: installation.page("/ready")[0] == 503)
            agent.kill()
        with installation.running(lab):
            assert installation.page("/ready")[0] == 503


def test_a_second_agent_with_the_same_journal_is_rejected(installation: AgentInstallation) -> None:
    with Lab(vms=["web-0"]) as lab, installation.running(lab):
        arguments = installation.command("run", "--endpoint", lab.vm("web-0").endpoint)
        second = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert second.returncode == 2
    assert "is in use by another agent" in second.stderr


def test_a_taken_listen_address_does_not_stop_the_agent(installation: AgentInstallation) -> None:
    with Lab(vms=["web-0"]) as lab, socket.socket() as taken:
        taken.bind(("127.0.0.1", installation.port))
        arguments = installation.command("run", "--endpoint", lab.vm("web-0").endpoint)
        with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as agent:
            try:
                event = lab.reboot("web-0")
                lab.wait_for(lambda: event.approved)
                code, log = stop_agent(agent)
            finally:
                agent.kill()
    assert code == 0
    assert f"the agent cannot listen on 127.0.0.1:{installation.port}" in log


NEW_STEP = """
[steps.tell]
use = "command"
run = ["/bin/sh", "-c", "echo $FOREWARN_KIND >> FOLDER/told"]
budget = "1m"

[[rules]]
"""


def log_after_reload(agent: subprocess.Popen[str]) -> str:
    """The next line that the agent logs about its configuration after SIGHUP."""
    agent.send_signal(signal.SIGHUP)
    assert agent.stderr is not None
    return next(line for line in agent.stderr if "configuration" in line)


def test_sighup_makes_the_agent_use_its_changed_file(installation: AgentInstallation) -> None:
    with Lab(vms=["web-0"]) as lab, installation.running(lab) as agent:
        text = installation.file.read_text().replace("[[rules]]", NEW_STEP.replace("FOLDER", str(installation.folder)))
        installation.file.write_text(text.replace('steps = ["away", "mark"]', 'steps = ["away", "tell"]'))
        assert log_after_reload(agent) == "INFO the agent uses its new configuration; steps: away, mark, tell\n"
        assert installation.metric('steps_cut_total{step="tell"}') == 0, "its series exist before the first run"
        event = lab.reboot("web-0")
        lab.wait_for(lambda: event.approved)
        assert (installation.folder / "told").read_text() == "Reboot\n"
        assert not (installation.folder / "done").exists()


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ('approve = "when-done"', 'approve = "soon"', "agent.toml:"),
        ("[[rules]]", "[[rules", "this is not TOML"),
        ('budget = "20s"', "", "[steps.away] has no budget"),
        ("/state", "/other", "state cannot change while the agent runs: restart it"),
    ],
    ids=["bad value", "no TOML", "missing key", "fixed setting"],
)
def test_sighup_with_a_file_that_cannot_be_used_changes_nothing(
    installation: AgentInstallation, before: str, after: str, reason: str
) -> None:
    with Lab(vms=["web-0"]) as lab, installation.running(lab) as agent:
        installation.file.write_text(installation.file.read_text().replace(before, after, 1))
        line = log_after_reload(agent)
        assert line.startswith("ERROR the new configuration is not used, the old one stays: ")
        assert reason in line
        event = lab.reboot("web-0")
        lab.wait_for(lambda: event.approved)
        assert (installation.folder / "done").read_text() == "Reboot\n"


def test_sighup_does_not_interrupt_a_running_step(installation: AgentInstallation) -> None:
    slow = "touch FOLDER/begun; while [ ! -e FOLDER/go ]; do sleep 0.05; done; echo $FOREWARN_KIND >> FOLDER/done"
    text = installation.file.read_text().replace("echo $FOREWARN_KIND >> FOLDER/done", slow)
    text = text.replace(f"echo $FOREWARN_KIND >> {installation.folder}/done", slow)
    installation.file.write_text(text.replace("FOLDER", str(installation.folder)))
    with Lab(vms=["web-0"]) as lab, installation.running(lab) as agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: (installation.folder / "begun").exists())
        log_after_reload(agent)
        (installation.folder / "go").touch()
        lab.wait_for(lambda: event.approved)
    assert (installation.folder / "done").read_text() == "Reboot\n"


def test_a_damaged_journal_stops_the_agent_until_it_is_repaired(installation: AgentInstallation) -> None:
    with Lab(vms=["web-0"]) as lab:
        with installation.running(lab) as agent:
            lab.reboot("web-0", notice="1h")
            lab.wait_for(lambda: installation.page("/ready")[0] == 503)
            stop_agent(agent)
        journal = installation.folder / "state" / "journal.db"
        journal.write_bytes(journal.read_bytes()[:4096] + b"\xff" * 4096 * 20)
        arguments = installation.command("run", "--endpoint", lab.vm("web-0").endpoint)
        refused = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2
        option = f"--config {installation.file}"
        assert f"run `forewarn agent repair {option}`, which keeps what can be read" in refused.stderr
        assert "Traceback" not in refused.stderr

        report: dict[str, Any] = json.loads(installation.output("repair", "--json"))
        assert report["repaired"]
        assert report["unreadable"]
        assert Path(report["damaged_copy"]).exists()
        with installation.running(lab):
            lab.wait_for(lambda: installation.page("/ready")[0] == 503)
        assert "is not damaged: nothing was changed." in installation.output("repair")


def test_an_agent_can_run_once(installation: AgentInstallation) -> None:
    with Lab(vms=["web-0"]) as lab:
        event = lab.reboot("web-0")
        arguments = installation.command("run", "--once", "--endpoint", lab.vm("web-0").endpoint)
        assert subprocess.run(arguments, timeout=60).returncode == 0
        assert event.approved_by == "web-0"
    assert (installation.folder / "done").read_text() == "Reboot\n"


def test_an_agent_that_cannot_start_prints_the_reason(installation: AgentInstallation) -> None:
    bad = installation.folder / "bad.toml"
    bad.write_text(installation.file.read_text().replace(f"127.0.0.1:{installation.port}", "nowhere"))
    arguments = [sys.executable, "-m", "forewarn", "agent", "run", "--config", str(bad)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "is not an address" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_agent_without_its_extra_says_what_to_install_or_to_disable(installation: AgentInstallation) -> None:
    start = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from forewarn.agent.__main__ import main; sys.exit(main())"
    )
    arguments = [
        sys.executable,
        "-S",
        "-c",
        start,
        str(SOURCE),
        "--config",
        str(installation.file),
    ]  # -S: nothing that pip installed
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == (
        "the agent's pages need prometheus_client, which is not installed: pip install 'forewarn[agent]', "
        'or set listen = ""\n'
    )


def test_the_agents_process_does_not_load_the_command_line_packages(installation: AgentInstallation) -> None:
    with Lab(vms=["web-0"]) as lab, installation.running(lab) as agent:
        arguments = Path(f"/proc/{agent.pid}/cmdline").read_bytes().split(b"\0")
        assert arguments[1:4] == [b"-P", b"-m", b"forewarn.agent"]
    loaded = "import sys, forewarn.agent.__main__, forewarn.agent.process; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, timeout=60)
    assert not {"click", "rich", "msgspec"} & set(modules.stdout.split())
