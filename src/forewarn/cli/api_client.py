"""The client of the operator API: calls over any transport, and answers turned into values or errors.

An error answer becomes the class of `forewarn.errors` that has its code.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

from forewarn.base.duration import exact_duration_text
from forewarn.base.times import parse_time
from forewarn.errors import (
    Conflict,
    FileProblem,
    Forbidden,
    ForewarnError,
    InvalidFile,
    NotFound,
    Refused,
    Rejected,
    Unauthenticated,
    Unavailable,
)

_NOW_HEADER = "forewarn-now"  # of every answer: the service's time
_ASK_HEADER = {"Forewarn-Confirm": "ask"}  # of a change: if a person has to confirm it, answer its preview instead
_STATUS_CONFIRMATION_REQUIRED = 428
API_ROOT = "/forewarn/v1"  # every path of the operator API begins with it
TIMEOUT_S = 60.0  # of one call, unless the caller gives another
JsonObject = dict[str, Any]  # a JSON object that the service answered
QueryParameters = Mapping[str, object]  # parameters whose value is None are not sent


class ServiceNotRunning(Unavailable):
    """No service answers on the socket of the data directory, or the socket belongs to another user. Exit code 3."""


class ServiceFailure(ForewarnError):
    """The service failed, and the caller cannot fix it. Exit code 1."""


class TooManyRequests(Unavailable):
    """The service answered 429: this caller has too many connections open. Exit code 3."""


_ERROR_CLASSES: dict[str, type[ForewarnError]] = {
    "Rejected": Rejected,
    "NotFound": NotFound,
    "Refused": Refused,
    "Unauthenticated": Unauthenticated,
    "Forbidden": Forbidden,
    "Conflict": Conflict,
    "Unavailable": Unavailable,
    "TooManyRequests": TooManyRequests,
}


def error_code(error: ForewarnError) -> str:
    """Return the API's code for an error, such as `NotFound`, for the JSON that is printed."""
    if isinstance(error, InvalidFile):
        return error.code
    return next((code for code, kind in reversed(_ERROR_CLASSES.items()) if isinstance(error, kind)), "Internal")


def named_error(code: str, message: str) -> ForewarnError:
    """Return (do not raise) an error with this message, of the class that has this code of the API."""
    return _ERROR_CLASSES.get(code, ServiceFailure)(message)


class HttpAnswer(NamedTuple):
    """The answer of a service to one request, of any status: its body, and the service's time."""

    status: int  # the HTTP status
    body: bytes  # undecoded
    now: float | None  # lab time when it was sent; None if the answer does not say


class Transport(Protocol):
    """How an ApiClient reaches one service: over its unix socket (local) or over HTTPS (remote)."""

    @property
    def location(self) -> str:
        """Where the service is, `in DIRECTORY` or `at URL`, to complete the sentence "the service …"."""

    def send(
        self, method: str, target: str, payload: bytes | None, timeout_s: float, headers: Mapping[str, str]
    ) -> HttpAnswer:
        """Send one request and wait; returns status, body and time of the answer, even of one with an error.

        `timeout_s` limits each step (connecting, each read), not the whole call.
        """


class ApiClient:
    """Client of the operator API of one service, for the commands; it holds no open connection.

    `get`, `post` and `delete` send one request each and return the decoded JSON object; `now` is the service's lab
    time. An error answer raises the class of `forewarn.errors` that has its code, InvalidFile if it lists problems, or
    else ServiceFailure. A service that is unreachable, or silent for `timeout_s` seconds of real time, raises
    Unavailable. A blank path segment raises Rejected. `transport` sends the requests and signs in where needed.
    `confirm` gets the preview of each change that a person has to confirm on a production service, and raises to
    prevent it; None: all changes are confirmed.
    """

    def __init__(self, transport: Transport, confirm: Callable[[JsonObject], None] | None = None) -> None:
        self._transport = transport
        self._confirm = confirm
        self._now: float | None = None  # the service's time, as of the last answer

    @property
    def location(self) -> str:
        """Where the service is, `in DIRECTORY` or `at URL`, to complete the sentence "the service …"."""
        return self._transport.location

    def get(self, *path: str, query: QueryParameters | None = None, timeout_s: float = TIMEOUT_S) -> JsonObject:
        """GET the resource at these path segments below /forewarn/v1; returns the JSON object of the answer."""
        return self._call("GET", _request_target(path, query or {}), timeout_s=timeout_s)

    def post(self, *path: str, body: Mapping[str, object] | None = None, timeout_s: float = TIMEOUT_S) -> JsonObject:
        """POST a JSON body, {} if None, to these path segments below /forewarn/v1; returns the answer."""
        return self._call("POST", _request_target(path, {}), body or {}, timeout_s=timeout_s)

    def delete(self, *path: str) -> JsonObject:
        """DELETE the resource at these path segments below /forewarn/v1, each of which is quoted whole."""
        return self._call("DELETE", _request_target(path, {}))

    def now(self) -> float:
        """Return the service's (lab) time in seconds since 1970, as of its last answer to this client."""
        return self._now if self._now is not None else parse_time(self.get("clock")["now"])

    def _call(
        self, method: str, target: str, body: Mapping[str, object] | None = None, timeout_s: float = TIMEOUT_S
    ) -> JsonObject:
        payload = None if body is None else json.dumps(body).encode()
        asks = self._confirm is not None and method != "GET"
        answer = self._send(method, target, payload, timeout_s, _ASK_HEADER if asks else {})
        if answer.status == _STATUS_CONFIRMATION_REQUIRED and self._confirm is not None:
            self._confirm(json.loads(answer.body)["preview"])
            answer = self._send(method, target, payload, timeout_s, {})
        return _parse_answer(answer.status, answer.body)

    def _send(
        self, method: str, target: str, payload: bytes | None, timeout_s: float, headers: Mapping[str, str]
    ) -> HttpAnswer:
        try:
            answer = self._transport.send(method, target, payload, timeout_s, headers)
        except TimeoutError as error:
            raise Unavailable(
                f"the forewarn service {self.location} did not answer within {exact_duration_text(timeout_s)}: "
                "try again, and look at its log if this persists"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the connection to the forewarn service {self.location} was lost: try again") from error
        self._now = answer.now if answer.now is not None else self._now
        return answer


def send_request(
    connection: http.client.HTTPConnection, method: str, target: str, payload: bytes | None, headers: Mapping[str, str]
) -> HttpAnswer:
    """Open the connection, send one request as the CLI, close it, and return the answer, of any status."""
    try:
        connection.connect()
        content_type = {} if payload is None else {"Content-Type": "application/json"}
        connection.request(method, target, payload, {"Forewarn-Surface": "cli", **content_type, **headers})
        answer = connection.getresponse()
        return HttpAnswer(answer.status, answer.read(), _time_of(answer.getheader(_NOW_HEADER)))
    finally:
        connection.close()


def _time_of(text: str | None) -> float | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError:
        return None  # of a server that is not ours


def _request_target(path: tuple[str, ...], query: QueryParameters) -> str:
    """Path and query of a request. Each segment is quoted whole, so a name may hold a slash."""
    if not all(segment.strip() for segment in path):
        raise Rejected("the name is empty: give one (in a script, look for a variable that is not set)")
    given = {name: _query_value(value) for name, value in query.items() if value is not None}
    tail = f"?{urlencode(given)}" if given else ""
    return "/".join([API_ROOT, *(quote(segment, safe="") for segment in path)]) + tail


def _query_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_answer(status: int, raw: bytes) -> JsonObject:
    try:
        view = json.loads(raw)
    except ValueError:
        view = None
    if not isinstance(view, dict):
        raise ServiceFailure(f"the service answered status {status} without a JSON object: see its log")
    if status >= 400:
        raise _error_from_answer(status, view)
    return view


def _error_from_answer(status: int, view: JsonObject) -> ForewarnError:
    found = view.get("error")
    error: JsonObject = found if isinstance(found, dict) else {}
    message = str(error.get("message") or f"the service answered status {status} without a reason: see its log")
    if error.get("problems"):
        problems = [FileProblem(line=p["line"], message=p["message"], remedy=p["remedy"]) for p in error["problems"]]
        return InvalidFile(problems, message=message, code=str(error.get("code")))
    return named_error(str(error.get("code")), message)
