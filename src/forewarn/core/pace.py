"""How a VM asks for events these days: when it last did, and how often. In real time, whatever a lab's clock does."""

from __future__ import annotations

from typing import NamedTuple

SILENT_S = 60.0  # whoever has asked within this time still asks


class Pace(NamedTuple):
    silent_s: float  # since it last asked, and a long poll it sent was to be answered; at least, after a restart
    gap_s: float | None = None  # between two requests, of late

    @property
    def is_silent(self) -> bool:
        return self.silent_s > SILENT_S
