"""The specification of a VM: program, hostname, network mode and terminal; fixed before it is created.

A file of its own because the supervisor's side and the init process both import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class NetworkMode(Enum):
    """Which network the program finds itself in."""

    OWN = "own"  # a new one, with 169.254.169.254 in it
    NO_VNET = "no-vnet"  # a new one outside a virtual network: the endpoint is told by DHCP (spec §2.5)
    JOINED = "joined"  # one that the user made


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSpec:
    hostname: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    boot_id_file: Path  # what the program reads as /proc/sys/kernel/random/boot_id
    network_mode: NetworkMode = NetworkMode.OWN
    joined_netns: Path | None = None  # the network namespace that is joined
    output: int | None = None  # an open file for what the program writes; None: where we write ourselves
    owns_terminal: bool = False  # the program is to be in the terminal's foreground
