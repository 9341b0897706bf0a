"""What to ask, and what an answer means: pure, so that a blocking and an async driver can share it.

A driver sends the `Request` it is given and hands the `Response` back. Asking again is decided here too: which
answers pass (410, 429, 5xx, an empty body: spec §11), and how long to wait before the next try.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from forewarn.errors import NotFound, Rejected, Unavailable
from forewarn.protocol.codec import Received, Unreadable, decode, read_date
from forewarn.protocol.message import Request, Response
from forewarn.protocol.versions import INSTANCE_VERSIONS, NEWEST

POLL_S = 1.0  # spec §8.5
HOLD_S = 20  # short of the 30 s of a Preempt, should a held request be lost on the way (spec §6.3)
HELD_PAUSE_S = 0.05  # a server on its way out lets go of held requests at once
LONGEST_PAUSE_S = 5.0
LONGEST_RETRY_AFTER_S = 10.0  # whatever a server asks for: a Preempt gives 30 s only (spec §6.3)
TRIES = 5  # of a single question
GONE_S = 80.0  # 410 lasts for up to 70 s (spec §11)
_PASSING = frozenset({408, 410, 429})
_NAME_VERSION = "2021-02-01"
NAME_VERSIONS = tuple(version for version in INSTANCE_VERSIONS if "2017-04-02" <= version <= _NAME_VERSION)


class Later(Unavailable):
    """The service answered that it cannot answer now."""

    def __init__(self, message: str, *, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What an answer to a poll said: a document, or None if it is the one named by the tag we sent."""

    received: Received | None
    tag: str
    held: bool  # the server waits on our behalf (spec §4.4)
    at: float | None  # its Date: lab time, where there is a lab (spec §12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Where a watcher stands: the document it knows, and how often in a row it has failed."""

    tag: str = ""
    known: Received | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What follows an answer: where the watcher stands now, what to pass on, and the pause before the next poll."""

    watch: Watch
    news: Received | None
    pause_s: float


def poll(*, version: str = NEWEST, tag: str = "", hold_s: int = 0) -> Request:
    """A GET of the document; with a tag it may be held until the document is another one."""
    condition = (("if-none-match", tag),) if tag else ()
    preference = (("prefer", f"wait={hold_s}"),) if tag and hold_s else ()
    return _request("GET", "/metadata/scheduledevents", {"api-version": version}, (*condition, *preference))


def approval(ids: Iterable[str], *, version: str = NEWEST) -> Request:
    body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in ids]}).encode("ascii")
    request = _request("POST", "/metadata/scheduledevents", {"api-version": version})
    return replace(request, headers=(*request.headers, ("content-type", "application/json")), body=body)


def name_question(*, version: str = _NAME_VERSION) -> Request:
    """Which name in `resources` is ours (spec §2.6)."""
    return _request("GET", "/metadata/instance/compute/name", {"api-version": version, "format": "text"})


def _request(method: str, path: str, query: dict[str, str], headers: tuple[tuple[str, str], ...] = ()) -> Request:
    return Request(method=method, target=f"{path}?{urlencode(query)}", headers=(("metadata", "true"), *headers))


def heard(response: Response) -> Heard:
    """Raises Unavailable if asking again may help, Rejected if not."""
    fields = dict(response.headers)
    received = None if response.status == 304 else _document(response)
    return Heard(
        received=received,
        tag=fields.get("etag", ""),
        held="wait" in fields.get("preference-applied", "").lower(),
        at=read_date(fields.get("date", "")),
    )


def _document(response: Response) -> Received:
    check(response)
    try:
        return decode(response.body)
    except Unreadable as error:
        raise Unavailable(str(error)) from error


def check(response: Response) -> None:
    """Raise what a status other than 200 means."""
    if response.status == 200:
        return
    if is_passing(response.status):
        said = f"the service cannot answer now (status {response.status}): ask again in a few seconds"
        raise Later(said, status=response.status, retry_after_s=retry_after_s(response))
    reason = reason_of(response)
    if response.status == 404:
        raise NotFound(f"the service does not know this VM, or not this path ({reason}): check the endpoint")
    raise Rejected(f"the service refused with status {response.status}: {reason}")


def is_passing(status: int) -> bool:
    """Whether asking again later may help (spec §11)."""
    return status in _PASSING or status >= 500


def retry_after_s(response: Response) -> float | None:
    """What Retry-After asks for, in seconds or as a date beside the service's own; None if it says nothing usable."""
    fields = dict(response.headers)
    text = fields.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_RETRY_AFTER_S)
    until, now = read_date(text), read_date(fields.get("date", ""))
    if until is None or now is None:
        return None
    return min(max(0.0, until - now), LONGEST_RETRY_AFTER_S)


def reason_of(response: Response) -> str:
    """What the body says, in whichever form it says it."""
    text = response.body[:2000].decode("utf-8", "replace").strip()
    try:
        said = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text or "no reason given"
    return said if isinstance(said, str) else text


def after_answer(watch: Watch, answer: Heard) -> Step:
    """A document is news if it is another one than the last, whatever its tag or incarnation."""
    pause_s = HELD_PAUSE_S if answer.held or (answer.tag and watch.known is None) else POLL_S
    if answer.received is None:
        return Step(watch=replace(watch, failures=0), news=None, pause_s=pause_s)
    news = answer.received if answer.received != watch.known else None
    return Step(watch=Watch(tag=answer.tag, known=answer.received), news=news, pause_s=pause_s)


def after_failure(watch: Watch, error: Unavailable | None = None) -> Step:
    """The tag is forgotten: whoever answers next may be another server."""
    failed = replace(watch, tag="", failures=watch.failures + 1)
    return Step(watch=failed, news=None, pause_s=pause_after(failed.failures, error))


def pause_after(failures: int, error: Unavailable | None = None) -> float:
    """Doubling from half a second, or what the service asks for; bounded, because a Preempt gives 30 seconds only
    (spec §6.3)."""
    doubling = min(LONGEST_PAUSE_S, 0.5 * 2.0 ** min(failures - 1, 8))
    asked = error.retry_after_s if isinstance(error, Later) else None
    return doubling if asked is None else max(doubling, asked)


def gives_up(failures: int, paused_s: float, error: Unavailable) -> bool:
    """Whether a single question has been asked often enough, after so many failures and seconds of pauses."""
    is_gone = isinstance(error, Later) and error.status == 410
    return paused_s >= GONE_S if is_gone else failures >= TRIES
