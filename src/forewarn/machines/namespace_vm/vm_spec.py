"""The specification of a VM: program, hostname, network mode and terminal, fixed before it is created.

It is a file of its own because the supervisor's side and the init process both import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from forewarn.machines.namespace_vm.private_files import VmFiles


class NetworkMode(Enum):
    """The network that a VM's program has."""

    OWN = "own"  # a new network that has 169.254.169.254
    NO_VNET = "no-vnet"  # outside a virtual network: DHCP names the endpoint (spec §2.5)
    JOINED = "joined"  # a network namespace of the user


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSpec:
    """How to create a VM: its program, environment, network and terminal; see `VmNamespaces`."""

    hostname: str  # of the VM
    argv: tuple[str, ...]  # the program, found on PATH, and its arguments
    environment: Mapping[str, str]  # all of it, except for the FOREWARN_… variables of each boot
    boot_id_file: Path  # an existing file that the program reads as /proc/sys/kernel/random/boot_id
    network_mode: NetworkMode = NetworkMode.OWN  # which network the program has
    joined_netns: Path | None = None  # the network namespace to join; None unless the mode is JOINED
    output: int | None = None  # file descriptor for the program's output; None: inherited
    owns_terminal: bool = False  # put the program in the terminal's foreground
    files: VmFiles | None = None  # its own disk and /tmp; None: those of the machine
