"""A whole cluster of processes that VMs and operators use while parts of it fail, and what must hold in the end."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from forewarn.cluster.nats_config import host_credentials_path, write_nats_config
from forewarn.cluster.postgres_record import PostgresRecord, open_record
from forewarn.cluster.row_changes import copy_digests, snapshot_digests
from forewarn.core.event import EventState
from forewarn.store.schema import EVENTS
from tests.cluster.control_node_processes import ProcessCluster, until
from tests.support.failover_load import ClientHistory, ClusterLoad, RecordFacts, check_history
from tests.support.nats_server import NatsServer
from tests.support.network_parts import ClusterNetwork, NetworkPart
from tests.support.node_process import NodeProcess
from tests.support.postgres_pair import ServerPair
from tests.support.replication_checks import check_record
from tests.support.service_process import ServiceProcess

VMS = {"web": "127.0.1.1", "db": "127.0.1.2", "queue": "127.0.1.3"}
FLEET = '[[hosts]]\nname = "h1"\n' + "".join(
    f'[[vms]]\nname = "{vm}"\nhost = "h1"\naddress = "{address}"\n' for vm, address in VMS.items()
)
QUICK_ACTS = '[[simulate]]\nthen = "take"\nseconds = 0.2\n'
_EFFECTS_WITH_REPEATS = "SELECT act_id, coalesce(repeats, 0) FROM effect LEFT JOIN act USING (act_id) ORDER BY seq"
CONTROL_NODES = ("c1", "c2", "c3")
PARTS = ("db1", "db2", "bus", "h1", "client", *CONTROL_NODES)  # of a cluster in network namespaces


class LoadedCluster:
    """PostgreSQL with a standby, NATS, control nodes and the node of one host.

    Each part is in a network namespace of its own (PARTS), if there is a network; the tests are in `client`. Nodes with
    names such as c2-new are in the namespace of c2.
    """

    def __init__(
        self,
        directory: Path,
        network: ClusterNetwork | None = None,
        names: tuple[str, ...] = ("c1", "c2"),
        environment_of: Callable[[str], Mapping[str, str]] = lambda name: {},
    ) -> None:
        self.network = network
        self.serving: list[ServiceProcess] = []  # the control nodes that clients call
        self.checked = RecordFacts(requests=(), approved=(), performed=(), effects=())
        with ExitStack() as undo:
            if network is not None:
                undo.callback(network.close)
            self.servers = ServerPair(parts=(self._part("db1"), self._part("db2")), client=self._part("client"))
            undo.callback(self.servers.remove)
            self.nats = NatsServer(directory, part=self._part("bus"))
            undo.callback(self.nats.kill)
            self.control = ProcessCluster(
                directory, self.servers.both_url, bus=self.nats.url, fleet=FLEET, part_of=self._part
            )
            undo.push(self.control)
            self.nats.configure(write_nats_config(self.control.secrets, ["h1"]).read_text(encoding="utf-8"))
            self.nats.start()
            for name in names:
                self.serving.append(self.control.start(name, environment=environment_of(name)))
            self.host = self._new_host(directory)
            undo.callback(self.host.kill)
            self.host.start()
            self._undo = undo.pop_all()

    def _new_host(self, directory: Path) -> NodeProcess:
        config = directory / "node.toml"
        credentials = host_credentials_path(self.control.secrets, "h1")
        config.write_text(f'bus_credentials = "{credentials}"\n{QUICK_ACTS}', encoding="utf-8")
        options = ("--config", str(config))
        return NodeProcess(
            data=directory / "h1", host="h1", bus=self.nats.url, arguments=options, part=self._part("h1")
        )

    def _part(self, name: str) -> NetworkPart | None:
        return None if self.network is None else self.network[name.partition("-")[0]]

    def load(self, name: str) -> ClusterLoad:
        return ClusterLoad(self.serving, self.host, VMS, name)

    def active(self) -> str:
        """Wait for an active node; returns its name."""
        name: str = until(self.control.active, "a node is active")
        return name

    def start_ended_nodes(self) -> None:
        """Start the control nodes again that had to end, as a process supervisor does."""
        for node in self.control.nodes.values():
            if not node.is_running:
                node.kill()
                node.start()

    def check(self, history: ClientHistory) -> None:
        """Judge what clients saw since the last check, and compare record, log and copies."""
        facts, before = self.servers.call(self.facts), self.checked
        self.checked = facts
        check_history(
            history,
            RecordFacts(
                requests=sorted(set(facts.requests) - set(before.requests)),
                approved=facts.approved,
                performed=facts.performed[len(before.performed) :],
                effects=facts.effects[len(before.effects) :],
                early=facts.early,
                entries=facts.entries,
            ),
        )
        self.servers.call(self._compare)

    def _compare(self) -> None:
        with closing(open_record(self.control.store)) as record:
            until(lambda: self._is_record_checked(record), "the record was compared while nothing was written")
            for node in self.control.nodes.values():
                if node.is_running:
                    until(partial(self._is_equal, node, record), "the copy has the rows of the record")

    def _is_record_checked(self, record: PostgresRecord) -> bool:
        """Compare record and log; returns False if somebody wrote meanwhile, which says nothing."""
        number = record.read_lease().number
        try:
            check_record(record)
        except AssertionError:
            if record.read_lease().number == number:
                raise
            return False
        return True

    def _is_equal(self, node: ServiceProcess, record: PostgresRecord) -> bool:
        """Whether the copy of a node has the rows of the record; starts it again if it had to end meanwhile."""
        if not node.is_running:
            self.start_ended_nodes()
        with record.snapshot() as snapshot:
            wanted = snapshot_digests(snapshot)
        return copy_digests(node.data / "forewarn.db") == wanted

    def facts(self) -> RecordFacts:
        """What the record and the ledger say once all events are over."""

        def rows(sql: str) -> list[Any]:
            with psycopg.connect(f"{self.control.store}?target_session_attrs=read-write") as db:
                return db.execute(sql.encode()).fetchall()

        def column(sql: str) -> list[str]:
            return [str(row[0]) for row in rows(sql)]

        until(lambda: not column("SELECT id FROM events WHERE status <> 'over'"), "all events are over")
        with closing(sqlite3.connect(self.host.data / "simulated.db")) as ledger:
            rows_of_acts = ledger.execute(_EFFECTS_WITH_REPEATS).fetchall()
        acts = [str(act_id) for act_id, repeats in rows_of_acts for _ in range(1 + repeats)]
        events = [EVENTS.read(body) for (body,) in rows("SELECT body FROM events")]
        return RecordFacts(
            requests=column("SELECT id FROM requests"),
            approved=column("SELECT event_id FROM history WHERE kind = 'approved'"),
            performed=column("SELECT event_id FROM history WHERE kind = 'performed' ORDER BY seq"),
            effects=[act_id.partition(":")[0] for act_id in acts],
            early=[
                event.id
                for event in events
                if event.status is EventState.OVER and event.approved_at is None and event.started_at is not None
                if event.started_at < event.not_before
            ],
            entries=[number for (number,) in rows("SELECT seq FROM history ORDER BY seq")],
        )

    def close(self) -> None:
        """End everything."""
        self._undo.close()
