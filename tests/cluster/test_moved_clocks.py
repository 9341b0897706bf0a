"""The clocks of control nodes jump while VMs and operators use a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.control_node_processes import until
from tests.cluster.loaded_cluster import CONTROL_NODES, LoadedCluster
from tests.support.nats_server import nats_program
from tests.support.postgres_server import is_installed

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        nats_program() is None or not is_installed() or FAKETIME is None,
        reason="NATS, PostgreSQL or libfaketime is not installed: run tests/cluster/install_servers.sh",
    ),
]


class MovedClock:
    """The system's clock of one process, by libfaketime; its monotonic clock is not changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """Let the clock be this far ahead of the machine's from now on; negative: behind."""
        partial = self._file.with_suffix(".new")
        partial.write_text(f"{ahead_s:+d}\n")
        partial.rename(self._file)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


class ClusterWithClocks(LoadedCluster):
    """Each control node has a clock of its own, by its name."""

    def __init__(self, directory: Path) -> None:
        clocks = self.clocks = {name: MovedClock(directory / f"{name}.clock") for name in CONTROL_NODES}
        super().__init__(directory, names=CONTROL_NODES, environment_of=lambda name: clocks[name].environment)

    def problem_of(self, name: str) -> str:
        """What a node says is wrong with it."""
        listed = self.control.nodes[name].api("GET", "/nodes").json["nodes"]
        return next(str(node.get("problem", "")) for node in listed if node["name"] == name)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterWithClocks]:
    found = ClusterWithClocks(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


def test_the_time_of_the_record_never_goes_back_when_clocks_jump(cluster: ClusterWithClocks) -> None:
    """The lease knows only PostgreSQL's clock; a node whose own is wrong does not take over."""
    active = cluster.active()
    others = [name for name in CONTROL_NODES if name != active]
    with cluster.load("clocks") as load:
        load.wait_for_rounds(1)
        cluster.clocks[others[0]].set(-30)
        until(lambda: "clock" in cluster.problem_of(others[0]), "the standby says that its clock is wrong")
        cluster.clocks[active].set(+5)
        load.wait_for_rounds(1)
        cluster.clocks[active].set(0)  # its time stands still until the clock has caught up
        load.wait_for_rounds(1)
        assert cluster.control.active() == active
        cluster.control.nodes[active].kill()
        until(lambda: cluster.control.active() == others[1], "the node with the right clock is active")
        load.wait_for_rounds(1)
        for clock in cluster.clocks.values():
            clock.set(0)
        cluster.start_ended_nodes()
        load.wait_for_rounds(1)
    cluster.check(load.history)
