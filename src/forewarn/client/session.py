"""The client's session: endpoint, api-version negotiation, service time, and flows of single requests.

`ClientSession` holds everything that the blocking and the asyncio client share.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from forewarn.client.change_detection import time_left_s
from forewarn.client.cursor import read_boot_id
from forewarn.client.discovery import Discovery, discover_endpoint
from forewarn.client.effects import CallFunction, Flow, Sleep, Unreachable, request_flow
from forewarn.client.endpoint import Endpoint, configured_endpoint
from forewarn.client.events import Event, lists
from forewarn.client.requests import (
    NAME_VERSIONS,
    PollAnswer,
    PollState,
    approval_request,
    backoff_s,
    name_request,
    parse_poll_answer,
    poll_request,
    raise_for_status,
    should_give_up,
)
from forewarn.errors import ForewarnError, Rejected, Unavailable
from forewarn.protocol.codec import Received
from forewarn.protocol.dates import parse_date
from forewarn.protocol.document import Kind
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.versions import NEWEST_VERSION, VERSIONS, event_fields, is_version_date, version_lists_kind

T = TypeVar("T")
LOG = logging.getLogger("forewarn.client")


# Estimates the service's time from the Date of its answers and this machine's clock. Pure.
#
# The time left of a notice decides which steps are cut, which rule applies and when an approval may be given, and none
# of that can be taken back. One answer with a wrong Date (of a proxy, a cache, one server of several) must therefore
# change nothing. A Date that fits the estimate moves it, by at most TOLERANCE_S. Any other Date counts only when
# AGREEING_ANSWERS answers in a row give the same time: then the service's clock has jumped, as that of a lab does, or
# this machine's clock was stopped, as in a Freeze. The client asks at once for the answers that it needs for that. A
# wrong time in which all answers agree is the service's time, by definition (spec §12).

AGREEING_ANSWERS = 3  # two wrong ones in a row are rare; each costs one request
TOLERANCE_S = 2.0  # a Date has whole seconds, and its answer takes a moment


class ServiceTimeEstimate:
    """Estimates the service's time from the Dates of its answers; instants `at` are of the monotonic clock."""

    def __init__(self) -> None:
        self._offset_s: float | None = None  # the service's time minus ours; None: not known
        self._rival_offset_s: float | None = None  # what the latest answers give instead
        self._rival_answers = 0  # how many in a row agree about it

    @property
    def is_doubtful(self) -> bool:
        """Whether the latest Date does not fit the estimate, so that further answers must decide."""
        return self._rival_offset_s is not None

    def time_at(self, at: float) -> float | None:
        """Return the service's time in POSIX seconds at this instant of the local monotonic clock."""
        return None if self._offset_s is None else self._offset_s + at

    def add_answer(self, date: float | None, at: float, *, trust_first: bool = True) -> None:
        """Take the Date (POSIX seconds) of an answer received `at`; None (no Date) changes nothing.

        The very first Date has no estimate to fit: with `trust_first` it counts at once, else it too needs
        AGREEING_ANSWERS.
        """
        if date is None:
            return
        offset_s = date - at
        if _agree(self._offset_s, offset_s) or (self._offset_s is None and trust_first):
            self._accept(offset_s)
            return
        self._rival_answers = self._rival_answers + 1 if _agree(self._rival_offset_s, offset_s) else 1
        self._rival_offset_s = offset_s
        if self._rival_answers >= AGREEING_ANSWERS:
            self._accept(offset_s)

    def _accept(self, offset_s: float) -> None:
        self._offset_s, self._rival_offset_s, self._rival_answers = offset_s, None, 0


def _agree(one: float | None, other: float) -> bool:
    return one is not None and abs(one - other) <= TOLERANCE_S


# Named one by one: a kind that only a newer version lists must not make the SDK refuse the versions that Azure serves.
_NEEDED_KINDS = (Kind.FREEZE, Kind.REBOOT, Kind.REDEPLOY, Kind.PREEMPT, Kind.TERMINATE)
# Never negotiate below this: older versions do not list evictions or deletions (spec §3).
OLDEST_COMPLETE_VERSION = next(
    version for version in VERSIONS if all(version_lists_kind(version, kind) for kind in _NEEDED_KINDS)
)


def _fallback_version(tried: str, response: HttpResponse, ours: Sequence[str]) -> str | None:
    """The older version to try after the answer rejected `tried`; None if it did not, or none is left."""
    # The result is always older than `tried`, so that the negotiation ends.
    older = [version for version in ours if version < tried]
    if response.status == 404 and b"invalid version" in response.body.lower():
        return max(older, default=None)
    offered = _offered_versions(response)
    if not offered or tried in offered:
        return None
    usable = [version for version in older if version in offered]
    return max(usable or [version for version in older if version <= max(offered)], default=None)


def _offered_versions(response: HttpResponse) -> tuple[str, ...]:
    if response.status != 400:
        return ()
    try:
        listed = json.loads(response.body)["newest-versions"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    return (
        tuple(str(version) for version in listed if is_version_date(str(version))) if isinstance(listed, list) else ()
    )


def _require_all_kinds(version: str) -> None:
    """Raises Rejected if this version does not list every kind of event; the message names them."""
    if version < OLDEST_COMPLETE_VERSION:
        kinds = " and ".join(kind for kind in _NEEDED_KINDS if not version_lists_kind(version, kind))
        raise Rejected(
            f"the service takes no api-version newer than {version}, which does not list {kinds}: "
            f"give version={version!r} to accept that"
        )


def _missing_fields_warning(version: str) -> str:
    listed = event_fields(version)
    missing = [name for name in event_fields(NEWEST_VERSION) if name not in listed]
    if not missing:
        return ""
    return f"the service takes api-version {version} at most: events come without {', '.join(missing)}"


FIRST_ANSWER_TIMEOUT_S = 150.0  # the first answer may take two minutes (spec §8.1)
ANSWER_TIMEOUT_S = 10.0  # of later answers; the time of a long poll is added, unless the service holds none
_MAX_TIME_REQUESTS = 2 * AGREEING_ANSWERS  # to confirm one Date
_TIME_REQUESTS_INTERVAL_S = 10.0  # after answers that did not agree: servers with different clocks may answer in turn
_VM_NAME = re.compile(r"[^\n<>{}\"]{1,256}")  # rejects HTML and JSON of other services


class ClientSession:
    """State and flows that the blocking and the asyncio client share; it does no I/O itself.

    Methods marked `Flow` are generators of effects: a client runs them, and does the I/O and sleeping.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        version: str | None = None,
        discovery: Discovery | None = None,
        environ: Mapping[str, str] = os.environ,
        boot_id: Callable[[], str] = read_boot_id,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = configured_endpoint(endpoint, environ)
        self.version = version or NEWEST_VERSION
        self.service_time = ServiceTimeEstimate()
        self._confirm_time_at = -math.inf  # of our clock; not before it
        self.boot_id, self.clock = boot_id, clock
        self._negotiates = version is None
        self._discovery = discovery or Discovery()
        self._has_answered = False
        self._answers_at_once = False  # the last poll that asked to be held was answered, and the service holds none
        self.answered_at: float | None = None  # time of the latest poll answer, by our clock
        self.long_poll_s = 0.0  # how long the service held that answer
        self.last_error = ""  # why a watcher's latest poll failed; "" if it succeeded
        self._name: str | None = None
        self._name_version = NAME_VERSIONS[-1]

    def time_left(self, event: Event) -> float | None:
        """Return the seconds until the event's NotBefore by the service's time now, negative after it."""
        return time_left_s(event, self.now())

    @property
    def date(self) -> float | None:
        """The service's time at its latest answer to a poll, in POSIX seconds; None if it is not known."""
        return None if self.answered_at is None else self.service_time.time_at(self.answered_at)

    def now(self) -> float | None:
        """Return the service's time in POSIX seconds, even between its answers; None if it is not known."""
        return self.service_time.time_at(self.clock())

    def discover(self) -> Flow[Endpoint]:
        """Flow: return the endpoint; if it is not configured, discover it once and keep it in `endpoint`."""
        if self.endpoint is None:
            self.endpoint = yield from discover_endpoint(self._discovery)
            self._has_answered = True  # to the discovery
        return self.endpoint

    def events(self) -> Flow[Received]:
        """Flow: return the current document. Retries transient failures, but raises Unreachable at once."""
        return (yield from self._with_retries(self._events_once))

    def own_events(self) -> Flow[tuple[Event, ...]]:
        """Flow: return the events that list this VM, in the document's order; () if none does."""
        name = yield from self.name()
        received = yield from self.events()
        return tuple(event for event in received.events if lists(event, name))

    def name(self) -> Flow[str]:
        """Flow: return this VM's name, as the `resources` of events spell it; ask only until it is known."""
        if self._name is None:
            self._name = yield from self._with_retries(self._name_once)
        return self._name

    def approve(self, events: Sequence[Event | str]) -> Flow[None]:
        """Flow: approve these events or event ids, in one request: all or, if it is refused, none."""
        ids = [event if isinstance(event, str) else event.id for event in events]
        if not all(ids) or not ids:
            raise Rejected("no event is named: give the id of at least one event to approve")
        yield from self._with_retries(partial(self._approve_once, ids))

    def poll(self, state: PollState, *, hold_s: int, confirm_time: bool = False) -> Flow[PollAnswer]:
        """Flow: poll once and return the answer; retry only with an older version, if that is negotiated.

        If the answer's Date does not fit the estimate, further requests confirm or reject it; with `confirm_time`, they
        also confirm the first Date.
        """
        yield from self.discover()
        asks_to_hold, asked_at = bool(state.condition and hold_s), self.clock()
        timeout_s = ANSWER_TIMEOUT_S if self._has_answered else FIRST_ANSWER_TIMEOUT_S
        if asks_to_hold and not self._answers_at_once:
            timeout_s += hold_s
        answers_at_once, self._answers_at_once = self._answers_at_once, False  # after a failure nothing is known
        response = yield from self._send_negotiated(
            lambda version: poll_request(version=version, tag=state.condition, hold_s=hold_s), timeout_s=timeout_s
        )
        answer, answered_at = parse_poll_answer(response), self.clock()
        self._has_answered, self.last_error = True, ""
        self._answers_at_once = not answer.was_held if asks_to_hold else answers_at_once
        self.service_time.add_answer(answer.server_time, answered_at, trust_first=not confirm_time)
        self.long_poll_s = answered_at - asked_at if answer.was_held else 0.0
        if self.service_time.is_doubtful and answered_at >= self._confirm_time_at:
            self._confirm_time_at = answered_at + _TIME_REQUESTS_INTERVAL_S
            yield from self._confirm_time(answer.etag)
        self.answered_at = answered_at
        return answer

    def _confirm_time(self, etag: str) -> Flow[None]:
        """Asks for more answers until they agree about the time; gives up after a few, or if one fails."""
        # Then the estimate stays, and the next polls decide. Documents in these answers are ignored: the next poll gets
        # them.
        for _ in range(_MAX_TIME_REQUESTS):
            try:
                response = yield from self._send_negotiated(
                    lambda version: poll_request(version=version, tag=etag), timeout_s=ANSWER_TIMEOUT_S
                )
            except ForewarnError:
                return
            if response.status not in (200, 304):
                return
            date = parse_date(dict(response.headers).get("date", ""))
            self.service_time.add_answer(date, self.clock(), trust_first=False)
            if not self.service_time.is_doubtful:
                self._confirm_time_at = -math.inf
                return

    def _events_once(self) -> Flow[Received]:
        answer = yield from self.poll(PollState(), hold_s=0)
        if answer.received is None:
            raise Unavailable("the service answered 304 to a request without an ETag: try again")
        return answer.received

    def _approve_once(self, ids: Sequence[str]) -> Flow[None]:
        timeout_s = ANSWER_TIMEOUT_S if self._has_answered else FIRST_ANSWER_TIMEOUT_S
        raise_for_status(
            (
                yield from self._send_negotiated(
                    lambda version: approval_request(ids, version=version), timeout_s=timeout_s
                )
            )
        )

    def _name_once(self) -> Flow[str]:
        endpoint = yield from self.discover()
        while True:
            response = yield from request_flow(endpoint, name_request(version=self._name_version), ANSWER_TIMEOUT_S)
            older = _fallback_version(self._name_version, response, NAME_VERSIONS)
            if older is None:
                break
            self._name_version = older
        raise_for_status(response)
        name = response.body.decode("utf-8", "replace").strip()
        if not name:
            raise Unavailable("the service gave an empty name for this VM: try again")
        if not _VM_NAME.fullmatch(name):
            raise Unavailable(f"the service gave {name[:40]!r}, which is not a VM's name: check the endpoint")
        return name

    def _send_negotiated(self, request: Callable[[str], HttpRequest], *, timeout_s: float) -> Flow[HttpResponse]:
        """Sends with the newest version that the service accepts, and remembers that version."""
        endpoint, first_version = (yield from self.discover()), self.version
        response = yield from request_flow(endpoint, request(first_version), timeout_s)
        while self._negotiates and (older := _fallback_version(self.version, response, VERSIONS)) is not None:
            _require_all_kinds(older)
            self.version = older
            response = yield from request_flow(endpoint, request(older), timeout_s)
        if self.version != first_version:
            yield warning_effect(_missing_fields_warning(self.version))
        return response

    def _with_retries(self, attempt: Callable[[], Flow[T]]) -> Flow[T]:
        """Retries transient failures; an endpoint that accepts no connection fails at once."""
        failures, paused_s = 0, 0.0
        while True:
            try:
                return (yield from attempt())
            except Unreachable:
                raise
            except Unavailable as error:
                failures += 1
                if should_give_up(failures, paused_s, error):
                    raise
                pause_s = backoff_s(failures, error)
            paused_s += pause_s
            yield Sleep(seconds=pause_s)


def warning_effect(text: str) -> CallFunction:
    """Return the effect that logs a warning to the logger `forewarn.client`; a flow must yield it."""
    return CallFunction(function=partial(LOG.warning, "%s", text))


class ClientProperties:
    """The read-only properties that `Client` and `AsyncClient` share; reading one sends nothing."""

    _session: ClientSession

    @property
    def version(self) -> str:
        """The api-version of the next poll or approval: as given, else the newest that was not rejected."""
        return self._session.version

    @property
    def date(self) -> float | None:
        """The service's time at its latest usable answer to a poll, in POSIX seconds; None until it is known.

        With that document the time left is `not_before - date` (spec §12).
        """
        return self._session.date

    @property
    def now(self) -> float | None:
        """The service's time now in POSIX seconds, by its Dates and the time since; None until it is known."""
        return self._session.now()

    @property
    def answered_at(self) -> float | None:
        """When the latest successful poll was answered, in seconds of the client's `clock`; None before it."""
        return self._session.answered_at

    @property
    def long_poll_s(self) -> float:
        """Seconds for which the service held its latest usable answer to a poll; 0.0 if it did not."""
        return self._session.long_poll_s

    @property
    def last_error(self) -> str:
        """Why the latest poll of `documents` or `watch` failed, or which part of its document is unusable; else ""."""
        return self._session.last_error
