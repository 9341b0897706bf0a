"""What a VM is to be, decided before anything of it exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Net(Enum):
    """Which network the program finds itself in."""

    OWN = "own"  # a new one, with 169.254.169.254 in it
    NO_VNET = "no-vnet"  # a new one outside a virtual network: the endpoint is told by DHCP (spec §2.5)
    JOINED = "joined"  # one that the user made


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    hostname: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    boot_id_file: Path  # what the program reads as /proc/sys/kernel/random/boot_id
    net: Net = Net.OWN
    joins: Path | None = None  # the network namespace that is joined
    output: int | None = None  # an open file for what the program writes; None: where we write ourselves
    owns_terminal: bool = False  # the program is to be in the terminal's foreground
