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
LONG_POLL_S = 10  # with the timeout shorter than the 30 s of a Preempt, in case a held request is lost (spec §6.3)
LONG_POLL_PAUSE_S = 0.05  # a server that shuts down answers held requests at once
MAX_BACKOFF_S = 5.0
MAX_RETRY_AFTER_S = 10.0  # upper bound for Retry-After: a Preempt gives only 30 s (spec §6.3)
MAX_TRIES = 5  # of a single request
GONE_TIMEOUT_S = 80.0  # 410 lasts for up to 70 s (spec §11)
_TRANSIENT_STATUSES = frozenset({408, 410, 429})
_NAME_VERSION = "2021-02-01"
# The api-versions with which the VM's name can be requested, oldest first.
NAME_VERSIONS = tuple(version for version in INSTANCE_VERSIONS if "2017-04-02" <= version <= _NAME_VERSION)


class TemporarilyUnavailable(Unavailable):
    """The service answered with a transient status; `retry_after_s` is what its Retry-After asks for, or None."""

    def __init__(self, message: str, *, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PollAnswer:
    """The parsed answer to a poll, made by `parse_poll_answer`."""

    received: Received | None  # the document, perhaps only partly usable; None after a 304: it has not changed
    etag: str  # with its quotes; "" if the answer has none
    was_held: bool  # the server applied our `Prefer: wait` (spec §4.4), even if it did not have to wait
    server_time: float | None  # its Date as POSIX seconds, which a lab moves (spec §12); None: not readable


@dataclass(frozen=True, slots=True, kw_only=True)
class PollState:
    """The state of a watcher between two polls: the last document with its ETag, and consecutive failures."""

    etag: str = ""  # of `document`; "" if it has none, and after a failed poll
    document: Received | None = None  # None before the first one
    failures: int = 0  # polls that failed in a row

    @property
    def condition(self) -> str:
        """The ETag to send with the next poll; "" if there is none, so that the answer comes in full.

        Also "" if the last document was only partly usable: the next answer may be whole.
        """
        return "" if self.document is not None and self.document.unusable else self.etag


@dataclass(frozen=True, slots=True, kw_only=True)
class PollStep:
    """What follows a poll: the new state, the document if it changed, the pause before the next poll."""

    state: PollState
    new_document: Received | None  # None: the poll failed, or brought no document (304), or one equal to the last
    pause_s: float  # seconds to wait before the next poll


def poll_request(*, version: str = NEWEST_VERSION, tag: str = "", hold_s: int = 0) -> HttpRequest:
    """Build the GET of the document in this api-version.

    With `tag` and `hold_s` the server may hold its answer until the document changes, for at most `hold_s` seconds.
    """
    condition = (("if-none-match", tag),) if tag else ()
    preference = (("prefer", f"wait={hold_s}"),) if tag and hold_s else ()
    return _metadata_request("GET", "/metadata/scheduledevents", {"api-version": version}, (*condition, *preference))


def approval_request(ids: Iterable[str], *, version: str = NEWEST_VERSION) -> HttpRequest:
    """Build the POST that approves the events with these ids, in one body; it does not check them."""
    body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in ids]}).encode("ascii")
    request = _metadata_request("POST", "/metadata/scheduledevents", {"api-version": version})
    return replace(request, headers=(*request.headers, ("content-type", "application/json")), body=body)


def name_request(*, version: str = _NAME_VERSION) -> HttpRequest:
    """Build the GET of this VM's name as text, as the `resources` of events spell it (spec §2.6)."""
    return _metadata_request("GET", "/metadata/instance/compute/name", {"api-version": version, "format": "text"})


def _metadata_request(
    method: str, path: str, query: dict[str, str], headers: tuple[tuple[str, str], ...] = ()
) -> HttpRequest:
    return HttpRequest(method=method, target=f"{path}?{urlencode(query)}", headers=(("metadata", "true"), *headers))


def parse_poll_answer(response: HttpResponse) -> PollAnswer:
    """Parse the answer to a poll: a 200 with a document, or a 304."""
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
    """Raise the error that a status other than 200 means; return None for 200."""
    if response.status == 200:
        return
    if is_transient_status(response.status):
        message = f"the service cannot answer now (status {response.status}): ask again in a few seconds"
        raise TemporarilyUnavailable(message, status=response.status, retry_after_s=_retry_after_s(response))
    reason = _error_reason(response)
    if response.status == 404:
        raise NotFound(f"the service does not know this VM, or not this path ({reason}): check the endpoint")
    raise Rejected(f"the service refused with status {response.status}: {reason}")


def is_transient_status(status: int) -> bool:
    """Return whether a later retry may help after this HTTP status: 408, 410, 429, and 500 or more."""
    return status in _TRANSIENT_STATUSES or status >= 500


def _retry_after_s(response: HttpResponse) -> float | None:
    fields = dict(response.headers)
    text = fields.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_AFTER_S)
    until, now = parse_date(text), parse_date(fields.get("date", ""))
    if until is None or now is None:
        return None
    return min(max(0.0, until - now), MAX_RETRY_AFTER_S)


def _error_reason(response: HttpResponse) -> str:
    text = response.body[:2000].decode("utf-8", "replace").strip()
    try:
        message = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text or "no reason given"
    return message if isinstance(message, str) else text


def step_after_answer(state: PollState, answer: PollAnswer) -> PollStep:
    """Return the step that follows an answer to a poll; its state has no failures."""
    pause_s = LONG_POLL_PAUSE_S if answer.was_held or (answer.etag and state.document is None) else POLL_INTERVAL_S
    if answer.received is None:
        return PollStep(state=replace(state, failures=0), new_document=None, pause_s=pause_s)
    new_document = answer.received if answer.received != state.document else None
    return PollStep(
        state=PollState(etag=answer.etag, document=answer.received), new_document=new_document, pause_s=pause_s
    )


def partial_document_warning(document: Received | None) -> str:
    """Return a sentence for the log about a partly usable document; "" if it is whole or None."""
    if document is None or not document.unusable:
        return ""
    count, total = len(document.unusable), len(document.unusable) + len(document.events)
    kept = "no event counts" if "" in document.unusable else "events with their ids do not count"
    return (
        f"{count} of the {total} elements of the document cannot be used: {kept} as over until a whole document comes"
    )


def step_after_failure(state: PollState, error: Unavailable | None = None) -> PollStep:
    """Return the step that follows a poll that failed with `error`: one more failure, and a pause.

    Its state has no ETag, because another server may answer next.
    """
    failed = replace(state, etag="", failures=state.failures + 1)
    return PollStep(state=failed, new_document=None, pause_s=backoff_s(failed.failures, error))


def backoff_s(failures: int, error: Unavailable | None = None) -> float:
    """Return the seconds to wait after this many failures in a row: 0.5, then doubling up to 5.

    A Retry-After counts only up to MAX_RETRY_AFTER_S, because a Preempt has only 30 seconds of notice (spec §6.3).
    """
    doubling = min(MAX_BACKOFF_S, 0.5 * 2.0 ** min(failures - 1, 8))
    asked = error.retry_after_s if isinstance(error, TemporarilyUnavailable) else None
    return doubling if asked is None else max(doubling, asked)


def should_give_up(failures: int, paused_s: float, error: Unavailable) -> bool:
    """Return whether to give up a single request after this error: True from MAX_TRIES (5) failures on."""
    is_gone = isinstance(error, TemporarilyUnavailable) and error.status == 410
    return paused_s >= GONE_TIMEOUT_S if is_gone else failures >= MAX_TRIES
