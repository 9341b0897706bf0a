"""What a client has learned of its service, and the talks for single questions. No driver decides anything: a `Session`
is all that a blocking and an asyncio client have in common, and that is everything but moving bytes.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from forewarn.client.cursor import read_boot_id
from forewarn.client.discovery import Discovery, discovered
from forewarn.client.endpoint import Endpoint, given_endpoint
from forewarn.client.event import Event, lists
from forewarn.client.exchange import (
    NAME_VERSIONS,
    Heard,
    Watch,
    approval,
    check,
    gives_up,
    heard,
    name_question,
    pause_after,
    poll,
)
from forewarn.client.following import left_s
from forewarn.client.move import Do, Pause, Talk, Unreachable, send
from forewarn.client.version import lost_with, must_tell_all_kinds, next_version
from forewarn.errors import Rejected, Unavailable
from forewarn.protocol.codec import Received
from forewarn.protocol.message import Request, Response
from forewarn.protocol.versions import NEWEST, VERSIONS

T = TypeVar("T")
FIRST_ANSWER_S = 150.0  # the first answer may take two minutes (spec §8.1)
ANSWER_S = 10.0
_NAME = re.compile(r"[^\n<>{}\"]{1,256}")  # and no page of somebody else's
LOG = logging.getLogger("forewarn.client")


class Session:
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
        self.endpoint = given_endpoint(endpoint, environ)
        self.version = version or NEWEST
        self.date: float | None = None  # the service's, with its latest answer
        self.boot_id, self.clock = boot_id, clock
        self._negotiates = version is None
        self._discovery = discovery or Discovery()
        self._answered = False
        self.answered_at: float | None = None  # its latest answer to a poll, by our clock
        self.held_s = 0.0  # how long it kept that answer on our behalf
        self.trouble = ""  # why the latest poll of a watcher failed; "": it did not
        self._name: str | None = None
        self._name_version = NAME_VERSIONS[-1]

    def time_left(self, event: Event) -> float | None:
        """By the service's time, which has gone on since its latest answer."""
        return left_s(event, self.now())

    def now(self) -> float | None:
        """The service's time: its latest, and what has passed since; None if it told none."""
        if self.date is None or self.answered_at is None:
            return None
        return self.date + self.clock() - self.answered_at

    def discover(self) -> Talk[Endpoint]:
        if self.endpoint is None:
            self.endpoint = yield from discovered(self._discovery)
        return self.endpoint

    def events(self) -> Talk[Received]:
        return (yield from self._insist(self._ask_events))

    def mine(self) -> Talk[tuple[Event, ...]]:
        name = yield from self.name()
        received = yield from self.events()
        return tuple(event for event in received.events if lists(event, name))

    def name(self) -> Talk[str]:
        if self._name is None:
            self._name = yield from self._insist(self._ask_name)
        return self._name

    def approve(self, events: Sequence[Event | str]) -> Talk[None]:
        ids = [event if isinstance(event, str) else event.id for event in events]
        if not all(ids) or not ids:
            raise Rejected("no event is named: give the id of at least one event to approve")
        yield from self._insist(partial(self._approve, ids))

    def poll(self, watch: Watch, *, hold_s: int) -> Talk[Heard]:
        """One poll, and what it said; the service's time is remembered."""
        patience_s, asked_at = hold_s + ANSWER_S if self._answered else FIRST_ANSWER_S, self.clock()
        response = yield from self._ask(
            lambda version: poll(version=version, tag=watch.tag, hold_s=hold_s), patience_s=patience_s
        )
        answer = heard(response)
        date = self.now() if answer.at is None else answer.at  # an answer without one does not stop its clock
        self._answered, self.date, self.answered_at, self.trouble = True, date, self.clock(), ""
        self.held_s = self.answered_at - asked_at if answer.held else 0.0
        return answer

    def _ask_events(self) -> Talk[Received]:
        answer = yield from self.poll(Watch(), hold_s=0)
        if answer.received is None:
            raise Unavailable("the service answered 304 to a question without a tag: ask again")
        return answer.received

    def _approve(self, ids: Sequence[str]) -> Talk[None]:
        patience_s = ANSWER_S if self._answered else FIRST_ANSWER_S
        check((yield from self._ask(lambda version: approval(ids, version=version), patience_s=patience_s)))

    def _ask_name(self) -> Talk[str]:
        endpoint = yield from self.discover()
        while True:
            response = yield from send(endpoint, name_question(version=self._name_version), ANSWER_S)
            older = next_version(self._name_version, response, NAME_VERSIONS)
            if older is None:
                break
            self._name_version = older
        check(response)
        name = response.body.decode("utf-8", "replace").strip()
        if not name:
            raise Unavailable("the service told an empty name for this VM: ask again")
        if not _NAME.fullmatch(name):
            raise Unavailable(f"the service told {name[:40]!r}, which is no name of a VM: check the endpoint")
        return name

    def _ask(self, request: Callable[[str], Request], *, patience_s: float) -> Talk[Response]:
        """With the newest version that the service takes; what it took is remembered."""
        endpoint, wished = (yield from self.discover()), self.version
        response = yield from send(endpoint, request(wished), patience_s)
        while self._negotiates and (older := next_version(self.version, response, VERSIONS)) is not None:
            must_tell_all_kinds(older)
            self.version = older
            response = yield from send(endpoint, request(older), patience_s)
        if self.version != wished:
            yield warning(lost_with(self.version))
        return response

    def _insist(self, ask: Callable[[], Talk[T]]) -> Talk[T]:
        """Try again what may pass; an endpoint where nobody listens is told at once."""
        failures, paused_s = 0, 0.0
        while True:
            try:
                return (yield from ask())
            except Unreachable:
                raise
            except Unavailable as error:
                failures += 1
                if gives_up(failures, paused_s, error):
                    raise
                pause_s = pause_after(failures, error)
            paused_s += pause_s
            yield Pause(s=pause_s)


def warning(text: str) -> Do:
    """Something for the log that people read."""
    return Do(call=partial(LOG.warning, "%s", text))
