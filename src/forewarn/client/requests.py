"""Builds requests to the endpoint, reads the answers, and decides retries and backoff. Pure.

It also decides which answers are transient (410, 429, 5xx, an empty body: spec §11) and how long to wait before the
next try.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from forewarn.errors import NotFound, Rejected, Unavailable
from forewarn.protocol.codec import InvalidDocument, Received, decode_document
from forewarn.protocol.dates import parse_date
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.versions import INSTANCE_VERSIONS, NEWEST_VERSION

POLL_INTERVAL_S = 1.0  # spec §8.5
LONG_POLL_S = 20  # short of the 30 s of a Preempt, should a held request be lost on the way (spec §6.3)
LONG_POLL_PAUSE_S = 0.05  # a server on its way out lets go of held requests at once
MAX_BACKOFF_S = 5.0
MAX_RETRY_AFTER_S = 10.0  # whatever a server asks for: a Preempt gives 30 s only (spec §6.3)
MAX_TRIES = 5  # of a single question
GONE_TIMEOUT_S = 80.0  # 410 lasts for up to 70 s (spec §11)
_TRANSIENT_STATUSES = frozenset({408, 410, 429})
_NAME_VERSION = "2021-02-01"
NAME_VERSIONS = tuple(version for version in INSTANCE_VERSIONS if "2017-04-02" <= version <= _NAME_VERSION)


class TemporarilyUnavailable(Unavailable):
    """The service answered that it cannot answer now."""

    def __init__(self, message: str, *, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PollAnswer:
    """What an answer to a poll said: a document, or None if it is the one named by the tag we sent."""

    received: Received | None
    etag: str
    was_held: bool  # the server waits on our behalf (spec §4.4)
    server_time: float | None  # its Date: lab time, where there is a lab (spec §12)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollState:
    """Where a watcher stands: the document it knows, and how often in a row it has failed."""

    etag: str = ""
    document: Received | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PollStep:
    """What follows an answer: where the watcher stands now, what to pass on, and the pause before the next poll."""

    state: PollState
    new_document: Received | None
    pause_s: float


def poll_request(*, version: str = NEWEST_VERSION, tag: str = "", hold_s: int = 0) -> HttpRequest:
    """A GET of the document; with a tag it may be held until the document is another one."""
    condition = (("if-none-match", tag),) if tag else ()
    preference = (("prefer", f"wait={hold_s}"),) if tag and hold_s else ()
    return _metadata_request("GET", "/metadata/scheduledevents", {"api-version": version}, (*condition, *preference))


def approval_request(ids: Iterable[str], *, version: str = NEWEST_VERSION) -> HttpRequest:
    body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in ids]}).encode("ascii")
    request = _metadata_request("POST", "/metadata/scheduledevents", {"api-version": version})
    return replace(request, headers=(*request.headers, ("content-type", "application/json")), body=body)


def name_request(*, version: str = _NAME_VERSION) -> HttpRequest:
    """Which name in `resources` is ours (spec §2.6)."""
    return _metadata_request("GET", "/metadata/instance/compute/name", {"api-version": version, "format": "text"})


def _metadata_request(
    method: str, path: str, query: dict[str, str], headers: tuple[tuple[str, str], ...] = ()
) -> HttpRequest:
    return HttpRequest(method=method, target=f"{path}?{urlencode(query)}", headers=(("metadata", "true"), *headers))


def parse_poll_answer(response: HttpResponse) -> PollAnswer:
    """Raises Unavailable if asking again may help, Rejected if not."""
    fields = dict(response.headers)
    received = None if response.status == 304 else _decode_document(response)
    return PollAnswer(
        received=received,
        etag=fields.get("etag", ""),
        was_held="wait" in fields.get("preference-applied", "").lower(),
        server_time=parse_date(fields.get("date", "")),
    )


def _decode_document(response: HttpResponse) -> Received:
    raise_for_status(response)
    try:
        return decode_document(response.body)
    except InvalidDocument as error:
        raise Unavailable(str(error)) from error


def raise_for_status(response: HttpResponse) -> None:
    """Raise what a status other than 200 means."""
    if response.status == 200:
        return
    if is_transient_status(response.status):
        said = f"the service cannot answer now (status {response.status}): ask again in a few seconds"
        raise TemporarilyUnavailable(said, status=response.status, retry_after_s=retry_after_s(response))
    reason = error_reason(response)
    if response.status == 404:
        raise NotFound(f"the service does not know this VM, or not this path ({reason}): check the endpoint")
    raise Rejected(f"the service refused with status {response.status}: {reason}")


def is_transient_status(status: int) -> bool:
    """Whether asking again later may help (spec §11)."""
    return status in _TRANSIENT_STATUSES or status >= 500


def retry_after_s(response: HttpResponse) -> float | None:
    """What Retry-After asks for, in seconds or as a date beside the service's own; None if it says nothing usable."""
    fields = dict(response.headers)
    text = fields.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_AFTER_S)
    until, now = parse_date(text), parse_date(fields.get("date", ""))
    if until is None or now is None:
        return None
    return min(max(0.0, until - now), MAX_RETRY_AFTER_S)


def error_reason(response: HttpResponse) -> str:
    """What the body says, in whichever form it says it."""
    text = response.body[:2000].decode("utf-8", "replace").strip()
    try:
        said = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text or "no reason given"
    return said if isinstance(said, str) else text


def step_after_answer(watch: PollState, answer: PollAnswer) -> PollStep:
    """A document is news if it is another one than the last, whatever its tag or incarnation."""
    pause_s = LONG_POLL_PAUSE_S if answer.was_held or (answer.etag and watch.document is None) else POLL_INTERVAL_S
    if answer.received is None:
        return PollStep(state=replace(watch, failures=0), new_document=None, pause_s=pause_s)
    news = answer.received if answer.received != watch.document else None
    return PollStep(state=PollState(etag=answer.etag, document=answer.received), new_document=news, pause_s=pause_s)


def step_after_failure(watch: PollState, error: Unavailable | None = None) -> PollStep:
    """The tag is forgotten: whoever answers next may be another server."""
    failed = replace(watch, etag="", failures=watch.failures + 1)
    return PollStep(state=failed, new_document=None, pause_s=backoff_s(failed.failures, error))


def backoff_s(failures: int, error: Unavailable | None = None) -> float:
    """Doubling from half a second, or what the service asks for; bounded, because a Preempt gives 30 seconds only
    (spec §6.3)."""
    doubling = min(MAX_BACKOFF_S, 0.5 * 2.0 ** min(failures - 1, 8))
    asked = error.retry_after_s if isinstance(error, TemporarilyUnavailable) else None
    return doubling if asked is None else max(doubling, asked)


def should_give_up(failures: int, paused_s: float, error: Unavailable) -> bool:
    """Whether a single question has been asked often enough, after so many failures and seconds of pauses."""
    is_gone = isinstance(error, TemporarilyUnavailable) and error.status == 410
    return paused_s >= GONE_TIMEOUT_S if is_gone else failures >= MAX_TRIES
