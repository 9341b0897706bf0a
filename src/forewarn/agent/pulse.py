"""Whether the agent hears anything: the endpoint's last answer, and what went wrong since."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from forewarn.duration import span

FIRST_S = 180.0  # the first answer may take two minutes (spec §8.1)
SILENT_S = 90.0  # 410 lasts for up to 70 s (spec §11), and an answer may be held for 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    ok: bool
    text: str
    silent_s: float | None  # since the last answer; None: there was none yet


class Pulse:
    """Told of answers and failures as they come; real time, because outages happen in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_at = clock()
        self._answered_at: float | None = None
        self._why = ""

    def answered(self) -> None:
        self._answered_at, self._why = self._clock(), ""

    def failed(self, why: str) -> None:
        self._why = why

    def health(self) -> Health:
        now = self._clock()
        waited_s = now - (self._begun_at if self._answered_at is None else self._answered_at)
        silent_s = None if self._answered_at is None else waited_s
        if waited_s < (FIRST_S if self._answered_at is None else SILENT_S):
            return Health(
                ok=True, text=self._why or ("" if silent_s is not None else "no answer yet"), silent_s=silent_s
            )
        why = f" ({self._why})" if self._why else ""
        return Health(ok=False, text=f"the endpoint has not answered for {span(waited_s)}{why}", silent_s=silent_s)
