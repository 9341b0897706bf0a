"""Waiting for the world to come round, within the time that a step has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from forewarn.agent.value import Case

T = TypeVar("T")
_SPARE_S = 0.5


def spare_s(case: Case) -> float:
    """What of its time a reaction leaves over, so that it is the one who says what it was still waiting for."""
    return min(_SPARE_S, max(case.left_s(), 0.0) * 0.1)


async def until(case: Case, ask: Callable[[], Awaitable[T]], every_s: float = 0.25) -> T:
    """What `ask` gives once that is true, or at the end of the time; it is asked at least once."""
    end_s = spare_s(case)
    while not (given := await ask()) and (left_s := case.left_s() - end_s) > 0:
        await asyncio.sleep(min(every_s, left_s))
    return given
