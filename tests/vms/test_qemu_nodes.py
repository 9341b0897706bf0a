"""A node on each of two hosts with VMs of real QEMU: it answers the guest of its host, and acts on it with its driver.

NATS, the service and both nodes are processes; each node knows its own host only.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from forewarn.machines.qemu.processes import QemuInstance
from tests.support.nats_server import NatsServer, nats_program
from tests.support.node_process import NodeProcess
from tests.support.service_process import ServiceProcess, eventually
from tests.vms.conftest import CloneGuest
from tests.vms.hosts import DEVICE, HOST_NAMES, VM, QemuSite, toml_text
from tests.vms.service import ACT_S, FLEET, QemuService

pytestmark = [
    pytest.mark.vms,
    pytest.mark.skipif(nats_program() is None, reason="NATS is not installed: `make test-vms` installs it"),
]
FIRST, SECOND = HOST_NAMES


class QemuNodes(QemuService):
    """A service with a bus, and the nodes of the two hosts of a site."""

    def __init__(self, site: QemuSite) -> None:
        self.nats = NatsServer(site.directory)
        self.site = site
        config = site.directory / "service.toml"
        config.write_text("start_grace_s = 1\n")
        ServiceProcess.__init__(
            self,
            data=site.directory / "data",
            fleet=FLEET,
            command="serve",
            arguments=("--config", str(config)),
            bus=self.nats.url,
        )
        self.nodes = {name: self._node(name) for name in HOST_NAMES}

    def _node(self, name: str) -> NodeProcess:
        host = self.site.hosts[name]
        config = self.site.directory / f"{name}.toml"
        lines = [
            f"[qemu.hosts.{name}]",
            f"directory = {toml_text(str(host.directory))}",
            f"prefix = {toml_text(host.settings.prefix)}",
            "memory_mib = 1024",
            "[[listeners]]",
            'by = "device"',
            f"namespace = {toml_text(host.namespace)}",
            f"device = {toml_text(DEVICE)}",
            f"vm = {toml_text(VM)}",
            "[machines]\nacpi_timeout_s = 20",
        ]
        config.write_text("\n".join(lines) + "\n")
        return NodeProcess(
            data=self.site.directory / f"n-{name}",
            host=name,
            bus=self.nats.url,
            arguments=("--config", str(config)),
            hypervisor="qemu",
        )

    def start(self) -> None:
        self.nats.start()
        super().start()
        for node in self.nodes.values():
            node.start()

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.kill()
        self.nats.kill()

    def explanation(self) -> str:
        return self.forewarn("explain", VM).stdout


@pytest.fixture
def cluster(site: QemuSite, clone_guest: CloneGuest) -> Iterator[QemuNodes]:
    """The processes, with a guest on the first host that polls."""
    clone_guest(site)
    found = QemuNodes(site)
    try:
        found.start()
        found.wait_until_polled()
        yield found
    finally:
        found.close()


def alive_hosts(site: QemuSite) -> list[str]:
    return [name for name, host in site.hosts.items() if QemuInstance(name, VM, host.directory).is_alive()]


def steps_of(node: NodeProcess) -> list[str]:
    """The steps of moves in the journal of a node, oldest first."""
    path = node.data / "machines" / "acts.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as journal:
        rows = journal.execute("SELECT act_id FROM act JOIN step USING (act_id) GROUP BY act_id ORDER BY min(seq)")
        return [str(act_id).rpartition("/")[2] for (act_id,) in rows]


def incarnations(site: QemuSite) -> list[int]:
    """The incarnations of the documents that the guest saw, in order: first on its source, then on its destination."""
    text = "".join(site.hosts[name].console_text() for name in HOST_NAMES)
    return [json.loads(document)["DocumentIncarnation"] for document in re.findall(r"^doc (\{.*\})\r?\n", text, re.M)]


def test_a_live_migration_between_two_nodes_moves_the_guest_and_its_endpoint_and_a_crash_there_is_noticed(
    cluster: QemuNodes,
) -> None:
    site = cluster.site
    event_id = cluster.roll_out("migrate")
    texts = cluster.wait_for_end(event_id)
    assert cluster.host_of_vm() == SECOND
    assert any("paused for about" in text for text in texts), texts
    source, destination = site.hosts[FIRST], site.hosts[SECOND]
    destination.wait_for_ticks(5)
    assert eventually(lambda: alive_hosts(site) == [SECOND])
    assert destination.boots() == []
    assert not set(source.ticks()) & set(destination.ticks())
    assert site.conflicts() == []
    eventually(lambda: '"Events":[]' in site.hosts[SECOND].console_text(), within_s=ACT_S)  # by its new node
    seen = incarnations(site)
    assert seen == sorted(seen)
    assert not (source.directory / f"{VM}.toml").exists()
    os.kill(int((destination.directory / f"{VM}.pid").read_text()), signal.SIGKILL)
    # The service hears of it from the node; it blames nobody if it has not yet seen the VM run after the act.
    eventually(lambda: cluster.api("GET", f"/vms/{VM}").json["power"] == "stopped", within_s=ACT_S)


def test_a_node_that_is_killed_during_a_redeploy_continues_it_and_the_guest_boots_once(cluster: QemuNodes) -> None:
    site = cluster.site
    event_id = cluster.request("redeploy")
    eventually(lambda: "release" in steps_of(cluster.nodes[FIRST]), within_s=ACT_S)
    cluster.nodes[FIRST].kill()
    eventually(lambda: f"waits for the node of host {FIRST}, silent for" in cluster.explanation(), within_s=ACT_S)
    cluster.nodes[FIRST].start()
    cluster.wait_for_end(event_id)
    assert steps_of(cluster.nodes[FIRST]) == ["release", "clean-up"]
    assert steps_of(cluster.nodes[SECOND]) == ["prepare", "activate"]
    assert cluster.host_of_vm() == SECOND
    site.hosts[SECOND].wait_for_ticks(5)
    assert eventually(lambda: alive_hosts(site) == [SECOND])
    assert [len(host.boots()) for host in site.hosts.values()] == [1, 1]
    assert site.conflicts() == []
