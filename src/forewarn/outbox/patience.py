"""How long to wait before trying again: twice as long each time, within bounds, and never in step with others."""

from __future__ import annotations

_FIRST_S, _LONGEST_S = 1.0, 300.0


def wait_s(failures: int, chance: float) -> float:
    """After so many failures in a row; `chance`, from 0 to 1, takes up to half of it away."""
    full = min(_LONGEST_S, _FIRST_S * 2.0 ** min(failures - 1, 30))
    return max(_FIRST_S, full * (1 - chance / 2))
