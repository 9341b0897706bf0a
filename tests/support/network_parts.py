"""Network namespaces on one bridge, for the parts of a cluster, and packets that are dropped between them.

    with ClusterNetwork(("c1", "db1")) as network:
        network["db1"].call(start_server)          # its process is in that namespace
        network.drop("c1", "db1")                  # packets from c1 to db1; those back still pass
        network.heal()

The bridge has a namespace of its own, so nothing is changed outside. Needs root, `ip` and `nft`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from forewarn.machines.namespace_vm.syscalls import enter_namespace

T = TypeVar("T")
_NUMBERS = itertools.count(1)
_RULES = "table inet faults { chain received { type filter hook input priority 0; policy accept; }; }"


@cache
def why_networks_are_unavailable() -> str:
    """Why this machine does not let tests make such networks; "" if it does."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nft") is None:
        return "network namespaces with partitions need root, ip and nft"
    try:
        with ClusterNetwork(("probe",)):
            return ""
    except (OSError, AssertionError) as error:
        return f"network namespaces cannot be made here: {error}"


class NetworkPart:
    """One namespace with an address. `call` runs a function there: its sockets and processes belong to it."""

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace, self.address = namespace, address
        self._thread = ThreadPoolExecutor(1, namespace, initializer=self.enter)

    def enter(self) -> None:
        """Move the calling thread into the namespace, for good."""
        descriptor = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter_namespace(descriptor)
        finally:
            os.close(descriptor)

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run a function in the namespace, and return its result."""
        return self._thread.submit(function, *arguments, **options).result()

    def close(self) -> None:
        self._thread.shutdown()


class ClusterNetwork:
    """Parts on one bridge, by name. Leaving the block deletes all namespaces, and what is in them."""

    def __init__(self, names: Iterable[str]) -> None:
        prefix = f"fw{os.getpid()}-{next(_NUMBERS)}"
        self._switch = f"{prefix}-switch"
        self._parts = {
            name: NetworkPart(f"{prefix}-{name}", f"10.77.0.{number}") for number, name in enumerate(names, start=1)
        }
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> NetworkPart:
        return self._parts[name]

    def __enter__(self) -> ClusterNetwork:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def drop(self, sender: str, receiver: str) -> None:
        """Drop the packets from one part to another from now on, in this direction only."""
        rule = ("inet", "faults", "received", "ip", "saddr", self[sender].address, "drop")
        _run("ip", "netns", "exec", self[receiver].namespace, "nft", "add", "rule", *rule)

    def separate(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Drop all packets between two groups of parts."""
        for one, other in itertools.product(tuple(some), tuple(others)):
            self.drop(one, other)
            self.drop(other, one)

    def heal(self) -> None:
        """Let all packets pass again."""
        for part in self._parts.values():
            _run("ip", "netns", "exec", part.namespace, "nft", "flush", "chain", "inet", "faults", "received")

    def close(self) -> None:
        """Delete the namespaces; processes that are still there keep theirs until they end."""
        for part in self._parts.values():
            part.close()
        for namespace in (self._switch, *(part.namespace for part in self._parts.values())):
            if Path("/run/netns", namespace).exists():
                _run("ip", "netns", "delete", namespace)

    def _create(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for number, part in enumerate(self._parts.values()):
            space, end = part.namespace, f"part{number}"
            _run("ip", "netns", "add", space)
            _run("ip", "-n", self._switch, "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "-n", self._switch, "link", "set", end, "master", "bridge", "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "address", "add", f"{part.address}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            _run("ip", "netns", "exec", space, "nft", _RULES)


def _run(*line: str) -> None:
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(line)}: {done.stderr}"
