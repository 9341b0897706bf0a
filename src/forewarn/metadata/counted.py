"""What one process has counted of the VMs' requests, as a value: workers tell it the owner, who adds it up."""

from __future__ import annotations

from collections import Counter

import msgspec


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the process began; `held` and `connections` as of now."""

    answered: tuple[tuple[str, str, int, int], ...] = ()  # what was asked for, api-version, status, how often
    accepted: int = 0
    refused: int = 0
    lost: int = 0  # sightings that found no room
    held: int = 0
    connections: int = 0

    def over(self) -> Counted:
        """What stays of it when its process is gone."""
        return msgspec.structs.replace(self, held=0, connections=0)


def together(*parts: Counted) -> Counted:
    answered: Counter[tuple[str, str, int]] = Counter()
    for part in parts:
        for of, version, status, times in part.answered:
            answered[of, version, status] += times
    return Counted(
        answered=tuple((*of, times) for of, times in answered.items()),
        accepted=sum(part.accepted for part in parts),
        refused=sum(part.refused for part in parts),
        lost=sum(part.lost for part in parts),
        held=sum(part.held for part in parts),
        connections=sum(part.connections for part in parts),
    )
