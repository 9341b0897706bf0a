"""Records what an endpoint answers: it polls as a watcher does, and gives each answer that differs from the last."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from forewarn.client.endpoint import Endpoint
from forewarn.client.exchange import HELD_PAUSE_S, HOLD_S, POLL_S, poll
from forewarn.client.line import send
from forewarn.client.move import Unreachable
from forewarn.client.recording import Answer, End
from forewarn.client.session import ANSWER_S, FIRST_ANSWER_S
from forewarn.errors import Unavailable
from forewarn.protocol.codec import read_date
from forewarn.protocol.message import Response
from forewarn.protocol.versions import NEWEST


class Recorder:
    """One recording in the making. Times are real: `for_s` ends it, None lets it go on until interrupted."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        version: str = NEWEST,
        every_s: float = POLL_S,
        for_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint, self._version = endpoint, version
        self._every_s, self._for_s = every_s, math.inf if for_s is None else for_s
        self._clock, self._sleep = clock, sleep
        self._begun_at = clock()
        self._tag = ""
        self._holds = False
        self._date: float | None = None
        self._polls = 0

    def answers(self) -> Iterator[Answer]:
        """Each answer unlike the one before. An endpoint where nobody listens from the start is told: Unreachable."""
        last: Answer | None = None
        while self._left_s() > 0:
            answer = self._ask()
            if answer is not None and (last is None or not answer.says_as(last)):
                last = answer
                yield answer
            self._sleep(min(self._pause_s(), max(0.0, self._left_s())))

    def end(self) -> End:
        return End(at_s=self._at_s(), date=self._date, polls=self._polls)

    def _ask(self) -> Answer | None:
        """None: the document is the one we have."""
        hold_s = math.ceil(min(HOLD_S, self._left_s())) if self._tag else 0
        patience_s = hold_s + ANSWER_S if self._polls else FIRST_ANSWER_S
        try:
            response = send(self._endpoint, poll(version=self._version, tag=self._tag, hold_s=hold_s), patience_s)
        except Unavailable as error:
            if not self._polls and isinstance(error, Unreachable):
                raise
            return self._without_answer(str(error))
        return self._heard(response)

    def _without_answer(self, broke: str) -> Answer:
        self._polls += 1
        self._tag, self._holds = "", False
        return Answer(at_s=self._at_s(), status=None, broke=broke)

    def _heard(self, response: Response) -> Answer | None:
        fields = dict(response.headers)
        self._polls += 1
        self._date = read_date(fields.get("date", ""))
        self._holds = "wait" in fields.get("preference-applied", "").lower()
        if response.status == 304 and self._tag:
            return None
        # After anything but a document the tag is forgotten: what comes next is worth hearing in full.
        self._tag = fields.get("etag", "") if response.status == 200 and response.body else ""
        return Answer(
            at_s=self._at_s(),
            date=self._date,
            status=response.status,
            content_type=_plain(fields.get("content-type", "")),
            retry_after=_plain(fields.get("retry-after", "")),
            body=response.body,
        )

    def _pause_s(self) -> float:
        may_hold = self._holds or (self._tag and self._polls == 1)  # to be found out
        return HELD_PAUSE_S if may_hold else self._every_s

    def _at_s(self) -> float:
        return round(self._clock() - self._begun_at, 3)

    def _left_s(self) -> float:
        return self._for_s - (self._clock() - self._begun_at)


def _plain(text: str) -> str:
    """On one line and in ASCII, as a header can be sent again."""
    return " ".join(text.split()).encode("ascii", "replace").decode("ascii")
