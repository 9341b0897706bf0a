"""`make cluster`: a whole cluster on this machine, to be killed part by part.

PostgreSQL with a synchronous standby, NATS, two control nodes, the nodes of two hosts and a fleet of four VMs. Nodes
that are killed are started again after some seconds, as a process supervisor does. Ctrl-C stops and removes everything.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from forewarn.cluster.nats_config import host_credentials_path, write_nats_config
from tests.cluster.control_node_processes import ProcessCluster
from tests.support.nats_server import NatsServer, nats_program
from tests.support.node_process import NodeProcess
from tests.support.postgres_pair import ServerPair
from tests.support.postgres_server import is_installed
from tests.support.service_process import ServiceProcess

HOSTS = ("h1", "h2")
VMS = {
    "web-0": ("h1", "127.0.1.1"),
    "web-1": ("h2", "127.0.1.2"),
    "db": ("h1", "127.0.1.3"),
    "queue": ("h2", "127.0.1.4"),
}
_RESTART_AFTER_S = 5.0
_LOOK_INTERVAL_S = 0.5
_POLL = "/metadata/scheduledevents?api-version=2020-07-01"


def fleet_text() -> str:
    """Return the fleet file of the cluster."""
    hosts = "".join(f'[[hosts]]\nname = "{host}"\n' for host in HOSTS)
    vms = (f'[[vms]]\nname = "{vm}"\nhost = "{host}"\naddress = "{address}"\n' for vm, (host, address) in VMS.items())
    return hosts + "".join(vms)


class DemoCluster:
    """The processes of the cluster; leaving the stack that it was made with stops all of them."""

    def __init__(self, stack: ExitStack, directory: Path, tell: Callable[[str], None]) -> None:
        tell("starting PostgreSQL with a synchronous standby")
        self.servers = ServerPair()
        stack.callback(self.servers.remove)
        self.nats = NatsServer(directory)
        self.control = ProcessCluster(directory, self.servers.both_url, bus=self.nats.url, fleet=fleet_text())
        self.nats.configure(write_nats_config(self.control.secrets, HOSTS).read_text(encoding="utf-8"))
        tell("starting NATS, two control nodes and two host nodes")
        self.nats.start()
        stack.callback(self.nats.kill)
        stack.enter_context(self.control)
        for name in ("c1", "c2"):
            self.control.start(name)
        self.hosts = [self._start_host(stack, directory, host) for host in HOSTS]

    def _start_host(self, stack: ExitStack, directory: Path, host: str) -> NodeProcess:
        config = directory / f"{host}.toml"
        credentials = host_credentials_path(self.control.secrets, host)
        config.write_text(f'bus_credentials = "{credentials}"\n', encoding="utf-8")
        node = NodeProcess(data=directory / host, host=host, bus=self.nats.url, arguments=("--config", str(config)))
        node.start()
        stack.callback(node.kill)
        return node

    def guide(self) -> str:
        """Return what to watch and what to kill, as commands."""
        c1, c2 = self.control.nodes["c1"], self.control.nodes["c2"]
        ports = {node.host: node.port for node in self.hosts}
        host, address = VMS["web-0"]
        poll = f"curl -s --interface {address} -H Metadata:true 'http://127.0.0.1:{ports[host]}{_POLL}'"
        processes = [
            *((f"control node {name}", node.pid) for name, node in self.control.nodes.items()),
            *((f"node of host {node.host}", node.pid) for node in self.hosts),
        ]
        return "\n".join(
            [
                f"export PATH={Path(sys.executable).parent}:$PATH",
                "watch:",
                f"  watch -n 0.5 forewarn --data {c2.data} node list",
                f"  forewarn --data {c1.data} history --watch",
                f"  while sleep 0.2; do {poll}; echo; done",
                "do, on either control node:",
                f"  forewarn --data {c2.data} restart web-0",
                f"  forewarn --data {c2.data} node resign",
                "kill, or stop for longer than three seconds with -STOP and -CONT:",
                *(f"  kill -9 {pid}    # {what}" for what, pid in processes),
                f"what is killed starts again after {_RESTART_AFTER_S:g} s; Ctrl-C stops and removes everything",
            ]
        )

    def restart_ended(self, ended_at: dict[str, float], tell: Callable[[str], None]) -> None:
        """Start nodes again that ended some seconds ago; `ended_at` has when each was found, by name."""
        nodes: list[tuple[str, ServiceProcess | NodeProcess]] = [*self.control.nodes.items()]
        nodes += [(node.host, node) for node in self.hosts]
        for name, node in nodes:
            if node.is_running:
                ended_at.pop(name, None)
            elif time.monotonic() - ended_at.setdefault(name, time.monotonic()) >= _RESTART_AFTER_S:
                node.start()
                tell(f"{name} runs again, as process {node.pid}")


@click.command()
@click.option("--seconds", type=float, default=float("inf"), help="Stop by itself after this time.")
def main(seconds: float) -> None:
    """Run a cluster on this machine until Ctrl-C."""
    if nats_program() is None or not is_installed():
        raise click.ClickException("PostgreSQL or NATS is missing: run `make cluster`, as root on Debian")
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    directory = Path(tempfile.mkdtemp(prefix="forewarn-cluster-"))
    try:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            cluster = DemoCluster(stack, directory, click.echo)
            click.echo(cluster.guide())
            ends_at, ended_at = time.monotonic() + seconds, dict[str, float]()
            while time.monotonic() < ends_at:
                time.sleep(_LOOK_INTERVAL_S)
                cluster.restart_ended(ended_at, click.echo)
    except KeyboardInterrupt:
        pass
    click.echo("everything is stopped and removed")


if __name__ == "__main__":
    main()
