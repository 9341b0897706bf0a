"""The blocking driver: one connection per request over http.client, which knows no proxies."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from forewarn.client.endpoint import Endpoint, endpoint_for
from forewarn.client.exchange import (
    HOLD_S,
    Heard,
    Watch,
    after_answer,
    after_failure,
    approval,
    check,
    heard,
    name_question,
    pause_after,
    poll,
)
from forewarn.errors import Rejected, Unavailable
from forewarn.protocol.codec import Received
from forewarn.protocol.message import Request, Response
from forewarn.protocol.versions import NEWEST

T = TypeVar("T")
CONNECT_S = 5.0
FIRST_ANSWER_S = 150.0  # the first answer may take two minutes (spec §8.1)
ANSWER_S = 10.0
LARGEST_ANSWER = 8 * 1024 * 1024
TRIES = 5


class Unreachable(Unavailable):
    """Nothing accepts connections at the endpoint."""


class Client:
    """Hears of maintenance and approves it, for the VM that it runs in."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        version: str = NEWEST,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint = endpoint_for(endpoint, os.environ)
        self._version = version
        self._sleep = sleep
        self._answered = False
        self._date: float | None = None

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def date(self) -> float | None:
        """The service's time with its latest document: time left is `not_before - date` (spec §12)."""
        return self._date

    def events(self) -> Received:
        """The document as it is now."""
        received = self._insist(lambda: self._poll(Watch(), hold_s=0).received)
        if received is None:
            raise Unavailable("the service answered 304 to a question without a tag: ask again")
        return received

    def approve(self, *ids: str) -> None:
        """Let these events start early; harmless when repeated (spec §5.2)."""
        if not ids:
            raise Rejected("no event is named: give the id of at least one event to approve")
        self._insist(lambda: check(self._send(approval(ids, version=self._version), ANSWER_S)))

    def name(self) -> str:
        """This VM's name, as the `resources` of events spell it."""
        response = self._insist(lambda: self._checked(name_question()))
        return response.body.decode("utf-8", "replace").strip()

    def watch(self) -> Iterator[Received]:
        """The document now, then each one that differs from the last, for ever.

        Outages of any length are waited out; what asking again cannot mend (NotFound, Rejected) is raised.
        """
        watch = Watch()
        while True:
            try:
                step = after_answer(watch, self._poll(watch, hold_s=HOLD_S))
            except Unavailable:
                step = after_failure(watch)
            watch = step.watch
            if step.news is not None:
                yield step.news
            self._sleep(step.pause_s)

    def _poll(self, watch: Watch, *, hold_s: int) -> Heard:
        patience_s = hold_s + ANSWER_S if self._answered else FIRST_ANSWER_S
        answer = heard(self._send(poll(version=self._version, tag=watch.tag, hold_s=hold_s), patience_s))
        self._answered, self._date = True, answer.at
        return answer

    def _checked(self, request: Request) -> Response:
        response = self._send(request, ANSWER_S)
        check(response)
        return response

    def _insist(self, ask: Callable[[], T]) -> T:
        """Try again what may pass; an endpoint where nobody listens is told at once."""
        for failures in range(1, TRIES):
            try:
                return ask()
            except Unreachable:
                raise
            except Unavailable:
                self._sleep(pause_after(failures))
        return ask()

    def _send(self, request: Request, patience_s: float) -> Response:
        return send(self._endpoint, request, patience_s)


def send(endpoint: Endpoint, request: Request, patience_s: float) -> Response:
    """One exchange, whatever its answer means. Raises Unreachable, or Unavailable if the answer broke off."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=CONNECT_S)
    try:
        _connect(connection, endpoint)
        connection.sock.settimeout(patience_s)
        connection.request(request.method, request.target, request.body or None, dict(request.headers))
        return _read(connection.getresponse())
    except Unavailable:
        raise
    except (OSError, http.client.HTTPException) as error:
        said = str(error) or type(error).__name__
        raise Unavailable(f"{endpoint} broke off its answer ({said}): ask again") from error
    finally:
        connection.close()


def _connect(connection: http.client.HTTPConnection, endpoint: Endpoint) -> None:
    try:
        connection.connect()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unreachable(f"nothing answers at {endpoint} ({why}): check the endpoint") from error


def _read(answer: http.client.HTTPResponse) -> Response:
    body = answer.read(LARGEST_ANSWER)
    headers = tuple((name.lower(), value) for name, value in answer.getheaders())
    return Response(status=answer.status, headers=headers, body=body)
