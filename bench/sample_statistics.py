"""Statistics of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

__all__ = ["median", "percentile", "ratio", "spread"]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed (nearest rank)."""
    if not values or not 0 < share <= 1:
        raise ValueError(f"no percentile {share!r} of {len(values)} values: give some, and a share above 0 up to 1")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def spread(values: Sequence[float]) -> float:
    """Return the distance of the smallest and the largest value, as a share of the median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the ratio of the medians. Runs alternate, so a disturbance affects both sides."""
    return median(ours) / median(theirs)
