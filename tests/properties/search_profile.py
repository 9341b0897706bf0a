"""How long to search: the same few examples each time by default, many new ones with HYPOTHESIS_PROFILE=thorough."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
_MORE = int(os.environ.get("FOREWARN_PROPERTY_FACTOR", "20"))
_SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def searching(examples: int, steps: int = 50) -> settings:
    return settings(
        max_examples=examples * _MORE if THOROUGH else examples,
        stateful_step_count=steps * 2 if THOROUGH else steps,
        derandomize=not THOROUGH,
        deadline=None,
        suppress_health_check=_SLOW_IS_FINE,
        print_blob=THOROUGH,
    )
