"""What a client knows about its service, api-version negotiation, and the flows for single questions.

`ClientSession` holds everything that the blocking and the asyncio client share, which is all but moving bytes.
"""

from __future__ import annotations

import json
import logging
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
from forewarn.errors import Rejected, Unavailable
from forewarn.protocol.codec import Received
from forewarn.protocol.document import Kind
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.versions import NEWEST_VERSION, VERSIONS, event_fields, is_version_date, version_lists_kind

# Not below: a client that is not told of evictions or deletions would be silently deaf (spec §3).
OLDEST_COMPLETE_VERSION = next(
    version for version in VERSIONS if all(version_lists_kind(version, kind) for kind in Kind)
)


def fallback_version(tried: str, response: HttpResponse, ours: Sequence[str]) -> str | None:
    """The version to ask with instead, if this answer refuses the one that was tried; None: it does not, or there is
    none left (spec §10). Always an older one, so that asking ends.
    """
    older = [version for version in ours if version < tried]
    if response.status == 404 and b"invalid version" in response.body.lower():
        return max(older, default=None)
    offered = offered_versions(response)
    if not offered or tried in offered:
        return None
    usable = [version for version in older if version in offered]
    return max(usable or [version for version in older if version <= max(offered)], default=None)


def offered_versions(response: HttpResponse) -> tuple[str, ...]:
    """The list that comes with a refusal; () if this is none, or lists nothing."""
    if response.status != 400:
        return ()
    try:
        listed = json.loads(response.body)["newest-versions"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    return (
        tuple(str(version) for version in listed if is_version_date(str(version))) if isinstance(listed, list) else ()
    )


def require_all_kinds(version: str) -> None:
    if version < OLDEST_COMPLETE_VERSION:
        kinds = " and ".join(kind for kind in Kind if not version_lists_kind(version, kind))
        raise Rejected(
            f"the service takes no api-version newer than {version}, which does not tell of {kinds}: "
            f"give version={version!r} to do without"
        )


def missing_fields_warning(version: str) -> str:
    """A sentence for people: what this version does not tell; "" if it tells all."""
    told = event_fields(version)
    missing = [name for name in event_fields(NEWEST_VERSION) if name not in told]
    if not missing:
        return ""
    return f"the service takes api-version {version} at most: events come without {', '.join(missing)}"


T = TypeVar("T")
FIRST_ANSWER_TIMEOUT_S = 150.0  # the first answer may take two minutes (spec §8.1)
ANSWER_TIMEOUT_S = 10.0
_VM_NAME = re.compile(r"[^\n<>{}\"]{1,256}")  # and no page of somebody else's
LOG = logging.getLogger("forewarn.client")


class ClientSession:
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
        self.date: float | None = None  # the service's, with its latest answer
        self.boot_id, self.clock = boot_id, clock
        self._negotiates = version is None
        self._discovery = discovery or Discovery()
        self._has_answered = False
        self.answered_at: float | None = None  # its latest answer to a poll, by our clock
        self.held_s = 0.0  # how long it kept that answer on our behalf
        self.last_error = ""  # why the latest poll of a watcher failed; "": it did not
        self._name: str | None = None
        self._name_version = NAME_VERSIONS[-1]

    def time_left(self, event: Event) -> float | None:
        """By the service's time, which has gone on since its latest answer."""
        return time_left_s(event, self.now())

    def now(self) -> float | None:
        """The service's time: its latest, and what has passed since; None if it told none."""
        if self.date is None or self.answered_at is None:
            return None
        return self.date + self.clock() - self.answered_at

    def discover(self) -> Flow[Endpoint]:
        if self.endpoint is None:
            self.endpoint = yield from discover_endpoint(self._discovery)
        return self.endpoint

    def events(self) -> Flow[Received]:
        return (yield from self._with_retries(self._events_once))

    def mine(self) -> Flow[tuple[Event, ...]]:
        name = yield from self.name()
        received = yield from self.events()
        return tuple(event for event in received.events if lists(event, name))

    def name(self) -> Flow[str]:
        if self._name is None:
            self._name = yield from self._with_retries(self._name_once)
        return self._name

    def approve(self, events: Sequence[Event | str]) -> Flow[None]:
        ids = [event if isinstance(event, str) else event.id for event in events]
        if not all(ids) or not ids:
            raise Rejected("no event is named: give the id of at least one event to approve")
        yield from self._with_retries(partial(self._approve_once, ids))

    def poll(self, watch: PollState, *, hold_s: int) -> Flow[PollAnswer]:
        """One poll, and what it said; the service's time is remembered."""
        patience_s, asked_at = hold_s + ANSWER_TIMEOUT_S if self._has_answered else FIRST_ANSWER_TIMEOUT_S, self.clock()
        response = yield from self._send_negotiated(
            lambda version: poll_request(version=version, tag=watch.etag, hold_s=hold_s), patience_s=patience_s
        )
        answer = parse_poll_answer(response)
        date = (
            self.now() if answer.server_time is None else answer.server_time
        )  # an answer without one does not stop its clock
        self._has_answered, self.date, self.answered_at, self.last_error = True, date, self.clock(), ""
        self.held_s = self.answered_at - asked_at if answer.was_held else 0.0
        return answer

    def _events_once(self) -> Flow[Received]:
        answer = yield from self.poll(PollState(), hold_s=0)
        if answer.received is None:
            raise Unavailable("the service answered 304 to a question without a tag: ask again")
        return answer.received

    def _approve_once(self, ids: Sequence[str]) -> Flow[None]:
        patience_s = ANSWER_TIMEOUT_S if self._has_answered else FIRST_ANSWER_TIMEOUT_S
        raise_for_status(
            (
                yield from self._send_negotiated(
                    lambda version: approval_request(ids, version=version), patience_s=patience_s
                )
            )
        )

    def _name_once(self) -> Flow[str]:
        endpoint = yield from self.discover()
        while True:
            response = yield from request_flow(endpoint, name_request(version=self._name_version), ANSWER_TIMEOUT_S)
            older = fallback_version(self._name_version, response, NAME_VERSIONS)
            if older is None:
                break
            self._name_version = older
        raise_for_status(response)
        name = response.body.decode("utf-8", "replace").strip()
        if not name:
            raise Unavailable("the service told an empty name for this VM: ask again")
        if not _VM_NAME.fullmatch(name):
            raise Unavailable(f"the service told {name[:40]!r}, which is no name of a VM: check the endpoint")
        return name

    def _send_negotiated(self, request: Callable[[str], HttpRequest], *, patience_s: float) -> Flow[HttpResponse]:
        """With the newest version that the service takes; what it took is remembered."""
        endpoint, wished = (yield from self.discover()), self.version
        response = yield from request_flow(endpoint, request(wished), patience_s)
        while self._negotiates and (older := fallback_version(self.version, response, VERSIONS)) is not None:
            require_all_kinds(older)
            self.version = older
            response = yield from request_flow(endpoint, request(older), patience_s)
        if self.version != wished:
            yield warning_effect(missing_fields_warning(self.version))
        return response

    def _with_retries(self, ask: Callable[[], Flow[T]]) -> Flow[T]:
        """Try again what may pass; an endpoint where nobody listens is told at once."""
        failures, paused_s = 0, 0.0
        while True:
            try:
                return (yield from ask())
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
    """Something for the log that people read."""
    return CallFunction(function=partial(LOG.warning, "%s", text))


class ClientProperties:
    _session: ClientSession

    @property
    def version(self) -> str:
        """The api-version that is asked with: the newest that the service takes, as far as it is known yet."""
        return self._session.version

    @property
    def date(self) -> float | None:
        """The service's time with its latest document: time left is `not_before - date` (spec §12)."""
        return self._session.date

    @property
    def now(self) -> float | None:
        """The service's time: its latest, and what has passed since; None if it told none."""
        return self._session.now()

    @property
    def answered_at(self) -> float | None:
        """When the latest poll was answered, by this machine's monotonic clock; None if none was yet."""
        return self._session.answered_at

    @property
    def held_s(self) -> float:
        """How long the service kept its latest answer on our behalf; 0.0 if it did not."""
        return self._session.held_s

    @property
    def last_error(self) -> str:
        """Why the latest poll of a watcher failed; "" if it did not."""
        return self._session.last_error
