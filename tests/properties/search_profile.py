"""Hypothesis settings: few fixed examples by default, many random ones with HYPOTHESIS_PROFILE=thorough."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
_THOROUGH_FACTOR = int(os.environ.get("FOREWARN_PROPERTY_FACTOR", "20"))
_SUPPRESSED_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def search_settings(examples: int, steps: int = 50) -> settings:
    """Return settings for this many examples by default, and many more in the thorough profile."""
    return settings(
        max_examples=examples * _THOROUGH_FACTOR if THOROUGH else examples,
        stateful_step_count=steps * 2 if THOROUGH else steps,
        derandomize=not THOROUGH,
        deadline=None,
        suppress_health_check=_SUPPRESSED_CHECKS,
        print_blob=THOROUGH,
    )
