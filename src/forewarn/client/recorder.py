"""Records an endpoint: polls as a watcher does, and yields each answer that differs from the last."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from forewarn.client.blocking_client import send_request
from forewarn.client.effects import Unreachable
from forewarn.client.endpoint import Endpoint
from forewarn.client.recording import RecordedResponse, RecordingEnd
from forewarn.client.requests import LONG_POLL_PAUSE_S, LONG_POLL_S, POLL_INTERVAL_S, poll_request
from forewarn.client.session import ANSWER_TIMEOUT_S, FIRST_ANSWER_TIMEOUT_S
from forewarn.errors import Unavailable
from forewarn.protocol.dates import parse_date
from forewarn.protocol.http_message import HttpResponse
from forewarn.protocol.versions import NEWEST_VERSION


class EndpointRecorder:
    """Records what an endpoint answers to polls, once and in real time; `for_s` limits it in seconds.

    The api-version is not negotiated, so a refusal is an answer like any other. It writes no file: the caller stores
    what `answers` yields and, at the end, the result of `end`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        version: str = NEWEST_VERSION,
        every_s: float = POLL_INTERVAL_S,
        for_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint, self._version = endpoint, version
        self._every_s, self._for_s = every_s, math.inf if for_s is None else for_s
        self._clock, self._sleep = clock, sleep
        self._started_at = clock()
        self._etag = ""
        self._was_held = False
        self._date: float | None = None
        self._polls = 0

    def answers(self) -> Iterator[RecordedResponse]:
        """Poll, and yield each answer whose content differs from the last one's, until `for_s` is over."""
        last: RecordedResponse | None = None
        while self._left_s() > 0:
            answer = self._poll()
            if answer is not None and (last is None or not answer.has_same_content(last)):
                last = answer
                yield answer
            self._sleep(min(self._pause_s(), max(0.0, self._left_s())))

    def end(self) -> RecordingEnd:
        """Return the recording's last line, as of now: elapsed seconds, Date of the last response, polls."""
        return RecordingEnd(at_s=self._elapsed_s(), date=self._date, polls=self._polls)

    def _poll(self) -> RecordedResponse | None:
        """Polls once; None if the document has not changed (304)."""
        hold_s = math.ceil(min(LONG_POLL_S, self._left_s())) if self._etag else 0
        timeout_s = hold_s + ANSWER_TIMEOUT_S if self._polls else FIRST_ANSWER_TIMEOUT_S
        try:
            response = send_request(
                self._endpoint, poll_request(version=self._version, tag=self._etag, hold_s=hold_s), timeout_s
            )
        except Unavailable as error:
            if not self._polls and isinstance(error, Unreachable):
                raise
            return self._failed_answer(str(error))
        return self._recorded_answer(response)

    def _failed_answer(self, broke: str) -> RecordedResponse:
        self._polls += 1
        self._etag, self._was_held = "", False
        return RecordedResponse(at_s=self._elapsed_s(), status=None, broke=broke)

    def _recorded_answer(self, response: HttpResponse) -> RecordedResponse | None:
        fields = dict(response.headers)
        self._polls += 1
        self._date = parse_date(fields.get("date", ""))
        self._was_held = "wait" in fields.get("preference-applied", "").lower()
        if response.status == 304 and self._etag:
            return None
        # After anything but a document, drop the ETag to get the next answer in full.
        self._etag = fields.get("etag", "") if response.status == 200 and response.body else ""
        return RecordedResponse(
            at_s=self._elapsed_s(),
            date=self._date,
            status=response.status,
            content_type=_single_ascii_line(fields.get("content-type", "")),
            retry_after=_single_ascii_line(fields.get("retry-after", "")),
            body=response.body,
        )

    def _pause_s(self) -> float:
        may_hold = self._was_held or (self._etag and self._polls == 1)  # not known yet
        return LONG_POLL_PAUSE_S if may_hold else self._every_s

    def _elapsed_s(self) -> float:
        return round(self._clock() - self._started_at, 3)

    def _left_s(self) -> float:
        return self._for_s - (self._clock() - self._started_at)


def _single_ascii_line(text: str) -> str:
    """The text on one line in ASCII, so that it can be replayed as a header."""
    return " ".join(text.split()).encode("ascii", "replace").decode("ascii")
