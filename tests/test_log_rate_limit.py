"""A fault that lasts does not fill the log: equal messages are limited, others are not affected."""

from __future__ import annotations

import logging
import threading

import pytest

from forewarn.base.log_rate_limit import LogRateLimit, limit_repeated_messages


class RecordingLog:
    """A logger with a rate limit, whose time a test advances; `lines` are what it logged."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lines: list[str] = []
        self._log = logging.Logger("test")
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        handler.addFilter(LogRateLimit(lambda: self.now))
        self._log.addHandler(handler)

    def warn(self, text: str, *values: object) -> None:
        self._log.warning(text, *values, stacklevel=2)  # the place in the code is that of the caller

    def fail(self, error: Exception) -> None:
        self._log.error("a request failed", exc_info=error)


@pytest.fixture
def log() -> RecordingLog:
    return RecordingLog()


def test_an_equal_message_is_logged_once_a_minute_with_the_number_left_out(log: RecordingLog) -> None:
    for wait_s in (0, *[1] * 49, 11):
        log.now += wait_s
        log.warn("cannot accept: %s", "too many open files")
    assert log.lines == [
        "cannot accept: too many open files",
        "cannot accept: too many open files (49 more of these were left out)",
    ]


def test_different_messages_are_not_left_out(log: RecordingLog) -> None:
    for number in range(3):
        for _ in range(2):
            log.warn("webhook %d: delivery failed", number)
    assert log.lines == [f"webhook {number}: delivery failed" for number in range(3)]


def test_one_place_cannot_fill_the_log_with_ever_different_messages(log: RecordingLog) -> None:
    def refuse(count: int) -> None:
        for number in range(count):
            log.warn("refused %d", number)

    refuse(1000)
    log.warn("something else")
    assert log.lines == [*(f"refused {number}" for number in range(20)), "something else"]
    log.now += 60
    refuse(1)
    assert log.lines[-1] == "refused 0 (980 more of these were left out)"


def test_different_errors_with_the_same_message_are_both_logged(log: RecordingLog) -> None:
    for _ in range(2):
        log.fail(ValueError("one"))
        log.fail(ValueError("two"))
        log.fail(KeyError("two"))
    assert len(log.lines) == 3


def test_the_limit_is_for_all_threads_together(log: RecordingLog) -> None:
    def repeat() -> None:
        for _ in range(100):
            log.warn("busy")

    threads = [threading.Thread(target=repeat) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.lines == ["busy"]


def test_a_process_limits_the_messages_of_all_its_loggers() -> None:
    root = logging.getLogger()
    handler = logging.Handler()
    lines: list[str] = []
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    root.addHandler(handler)
    others = [other for other in root.handlers if other is not handler]
    before = [list(other.filters) for other in others]
    try:
        limit_repeated_messages()
        for _ in range(5):
            logging.getLogger("forewarn.web.server").warning("the API cannot accept connections")
    finally:
        root.removeHandler(handler)
        for other, filters in zip(others, before, strict=True):
            other.filters = filters
    assert lines == ["the API cannot accept connections"]
