"""Who is connected to local ports, from the kernel's tables."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"


def connections_to(ports: Collection[int], tables: Collection[Path] = TABLES) -> int:
    """How many established connections have one of these ports as their local one."""
    return sum(_local_port(line) in ports for table in tables for line in _established(table))


def _established(table: Path) -> list[list[str]]:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except FileNotFoundError:  # a kernel without IPv6
        return []
    rows = (line.split() for line in lines)
    return [row for row in rows if len(row) > 3 and row[3] == _ESTABLISHED]


def _local_port(row: list[str]) -> int:
    return int(row[1].rpartition(":")[2], 16)
