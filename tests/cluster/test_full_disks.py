"""The disk of a control node's copy is full, while VMs and operators use the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forewarn.cluster.node_roles import MIN_FREE_BYTES
from forewarn.service.control_node import MUST_START_AGAIN_EXIT
from tests.cluster.control_node_processes import until
from tests.cluster.loaded_cluster import LoadedCluster
from tests.support.nats_server import nats_program
from tests.support.postgres_server import is_installed
from tests.support.small_disk import SmallDisk, why_disks_are_unavailable

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),  # for a machine that is busy with other things
    pytest.mark.skipif(
        nats_program() is None or not is_installed(),
        reason="NATS or PostgreSQL is not installed: run tests/cluster/install_servers.sh",
    ),
]
NAMES = ("c1", "c2")
DISK_MIB = 64  # the log of a copy alone may have 16


class ClusterOnDisks:
    """A cluster whose control nodes have their copies on a small disk each."""

    def __init__(self, directory: Path) -> None:
        with ExitStack() as undo:
            self.disks = {name: undo.enter_context(SmallDisk(directory / name, mib=DISK_MIB)) for name in NAMES}
            self.cluster = LoadedCluster(directory, names=NAMES)
            undo.callback(self.cluster.close)
            self._undo = undo.pop_all()

    def row(self, name: str, *, asked: str) -> Any:
        """A control node as one that is asked lists it; without a role if it does not know it yet."""
        listed = self.cluster.control.nodes[asked].api("GET", "/nodes").json["nodes"]
        return next((node for node in listed if node["name"] == name), {"role": "", "problem": ""})

    def says(self, name: str, text: str, *, asked: str) -> bool:
        return text in self.row(name, asked=asked)["problem"]

    def is_well(self, name: str, *, asked: str) -> bool:
        row = self.row(name, asked=asked)
        return row["role"] == "standby" and not row["problem"]

    def roles(self) -> tuple[str, str]:
        """The active node, and the other one, which can take over."""
        active = self.cluster.active()
        other = next(name for name in NAMES if name != active)
        until(partial(self.is_well, other, asked=active), "the other node follows")
        return active, other

    def close(self) -> None:
        self._undo.close()


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOnDisks]:
    if reason := why_disks_are_unavailable():
        pytest.skip(reason)
    found = ClusterOnDisks(tmp_path_factory.mktemp("disks"))
    yield found
    found.close()


@pytest.fixture
def site(whole_site: ClusterOnDisks) -> Iterator[ClusterOnDisks]:
    """The cluster, whose disks have space again at the end; and all control nodes run."""
    yield whole_site
    for disk in whole_site.disks.values():
        disk.empty()
    whole_site.cluster.start_ended_nodes()


def test_a_standby_on_a_full_disk_says_so_and_catches_up_when_there_is_space(site: ClusterOnDisks) -> None:
    cluster = site.cluster
    active, standby = site.roles()
    with cluster.load("standby") as load:
        load.wait_for_rounds(1)
        site.disks[standby].fill()
        for asked in NAMES:
            until(partial(site.says, standby, "free some space on its disk", asked=asked), "the reason is shown")
        load.wait_for_rounds(1)
        until(lambda: site.row(standby, asked=active)["behind"] > 0, "it is shown that the standby lags")
        found = cluster.control.nodes[standby].forewarn("doctor")  # at the active node, through the standby
        assert f"bad  {standby} " in found.stdout, found.stdout + found.stderr
        assert "free some space on its disk" in found.stdout
        assert "no other control node can take over" in found.stdout
        refused = cluster.control.nodes[active].forewarn("node", "resign")
        assert "no other control node can take over" in refused.stderr
        site.disks[standby].empty()
        until(partial(site.is_well, standby, asked=active), "the standby follows again")
        load.wait_for_rounds(1)
    assert cluster.control.active() == active
    cluster.check(load.history)


def has_left(site: ClusterOnDisks, name: str, *, asked: str) -> bool:
    """Whether the node that is asked is active in place of this one."""
    return bool(site.cluster.control.nodes[asked].api("GET", "/nodes").json["active"] == asked)


def test_another_node_takes_over_from_one_whose_disk_is_full(site: ClusterOnDisks) -> None:
    cluster = site.cluster
    active, standby = site.roles()
    node = cluster.control.nodes[active]
    child = node._child
    assert child is not None
    with cluster.load("active") as load:
        load.wait_for_rounds(1)
        site.disks[active].fill()
        until(partial(has_left, site, active, asked=standby), "the other node is active")
        if child.poll() is None:  # it noticed before it had to write
            assert "this control node resigns: the disk with its copy has" in node.log.read_text(encoding="utf-8")
        else:
            assert child.returncode == MUST_START_AGAIN_EXIT
            assert "the copy could not be written (database or disk is full)" in node.log.read_text(encoding="utf-8")
        load.wait_for_rounds(1)
        cluster.start_ended_nodes()  # it serves operators again, although it cannot follow
        until(partial(site.says, active, "free some space", asked=standby), "the reason is shown")
        assert node.api("GET", "/fleet").status == 200
        assert cluster.control.active() == standby
        load.wait_for_rounds(1)
        site.disks[active].empty()
        until(partial(site.is_well, active, asked=standby), "the node follows again")
    cluster.check(load.history)


def test_a_node_resigns_before_its_disk_is_full(site: ClusterOnDisks) -> None:
    cluster = site.cluster
    active, standby = site.roles()
    node = cluster.control.nodes[active]
    with cluster.load("little space") as load:
        load.wait_for_rounds(1)
        site.disks[active].fill(leave=MIN_FREE_BYTES // 2)
        until(lambda: cluster.control.active() == standby, "the other node is active")
        assert node.is_running
        until(partial(site.says, active, "MiB free, so it leaves control to other nodes", asked=standby), "it says why")
        load.wait_for_rounds(1)
    assert node.is_running
    cluster.check(load.history)
