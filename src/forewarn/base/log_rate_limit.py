"""Limits how often the log repeats a message, so that a lasting fault does not fill the disk.

`limit_repeated_messages` installs it for a whole process, after the log was configured.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_INTERVAL_S = 60.0  # real time
_MAX_MESSAGES = 20  # different messages of one call site in an interval

MessageKey = tuple[str, type[BaseException] | None, str]  # text of the message, type and text of its exception


@dataclass(slots=True)
class _CallSite:
    """The messages of one place in the code since `began`, in monotonic time."""

    began: float
    left_out_before: dict[MessageKey, int]  # in the interval before
    left_out: dict[MessageKey, int] = field(default_factory=dict)  # after it was logged once
    overflow: int = 0  # messages beyond _MAX_MESSAGES that were left out


class LogRateLimit(logging.Filter):
    """A log filter that passes each message once in 60 s, and 20 different ones of one place in the code.

    A message that passes later says how many were left out before. Add it to handlers: a filter of a logger does not
    see the records of the loggers below it.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sites: dict[tuple[str, int], _CallSite] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be logged, and count it."""
        message = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        key = (message, type(error) if error else None, str(error) if error else "")
        with self._lock:
            left_out = self._count(self._current_site((record.pathname, record.lineno)), key)
        if left_out:
            record.msg, record.args = f"{message} ({left_out} more of these were left out)", ()
        return left_out is not None

    def _current_site(self, place: tuple[str, int]) -> _CallSite:
        now, site = self._monotonic(), self._sites.get(place)
        if site is None:
            site = self._sites[place] = _CallSite(now, {})
        elif now - site.began >= _INTERVAL_S:
            others = site.overflow
            left_out_before = {key: count + others for key, count in site.left_out.items() if count + others}
            site = self._sites[place] = _CallSite(now, left_out_before)
        return site

    @staticmethod
    def _count(site: _CallSite, key: MessageKey) -> int | None:
        if key in site.left_out:
            site.left_out[key] += 1
            return None
        if len(site.left_out) >= _MAX_MESSAGES:
            site.overflow += 1
            return None
        site.left_out[key] = 0
        return site.left_out_before.pop(key, 0)


def limit_repeated_messages() -> None:
    """Add a `LogRateLimit` of its own to every handler of the root logger; later handlers get none."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogRateLimit())
