"""The client of the operator API: calls over any transport, and answers turned into values or errors.

An error answer becomes the class of `forewarn.errors` that has its code.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from forewarn.errors import (
    Conflict,
    Forbidden,
    ForewarnError,
    NotFound,
    Refused,
    Rejected,
    Unauthenticated,
    Unavailable,
)

API_ROOT = "/forewarn/v1"
TIMEOUT_S = 60.0
JsonObject = dict[str, Any]  # one JSON object of the service's answers
QueryParameters = Mapping[str, object]  # those that are None are left out


class ServiceNotRunning(Unavailable):
    """No service answers in the data directory."""


class ServiceFailure(ForewarnError):
    """The service failed: nothing the caller can mend."""


class InvalidFile(Rejected):
    """A file with problems, each with its line."""

    def __init__(self, message: str, problems: list[JsonObject], code: str = "Rejected") -> None:
        super().__init__(message)
        self.code = code
        self.problems = problems
        self.file_name = "the file"

    def problem_lines(self) -> list[str]:
        """One sentence per problem, in the form that editors can jump to."""
        return [
            f"{self._problem_location(problem)}: {problem['what']}: {problem['remedy']}" for problem in self.problems
        ]

    def _problem_location(self, problem: JsonObject) -> str:
        return f"{self.file_name}:{problem['line']}" if problem.get("line") else self.file_name


_ERROR_CLASSES: dict[str, type[ForewarnError]] = {
    "Rejected": Rejected,
    "NotFound": NotFound,
    "Refused": Refused,
    "Unauthenticated": Unauthenticated,
    "Forbidden": Forbidden,
    "Conflict": Conflict,
    "Unavailable": Unavailable,
}


def error_code(error: ForewarnError) -> str:
    """What the service calls this error, whoever met it."""
    if isinstance(error, InvalidFile):
        return error.code
    return next((code for code, sort in reversed(_ERROR_CLASSES.items()) if isinstance(error, sort)), "Internal")


class Transport(Protocol):
    """A way to one service: its unix socket, or HTTPS."""

    @property
    def location(self) -> str:
        """`in DIRECTORY` or `at URL`, as sentences go on."""

    def send(self, method: str, target: str, payload: bytes | None, patience_s: float) -> tuple[int, bytes]:
        """Status and body of the answer. What breaks on the way may come as it is."""


class ApiClient:
    """The operator's API of one service."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def location(self) -> str:
        return self._transport.location

    def get(self, *path: str, query: QueryParameters | None = None, patience_s: float = TIMEOUT_S) -> JsonObject:
        return self._call("GET", _request_target(path, query or {}), patience_s=patience_s)

    def post(self, *path: str, body: Mapping[str, object] | None = None, patience_s: float = TIMEOUT_S) -> JsonObject:
        return self._call("POST", _request_target(path, {}), body or {}, patience_s=patience_s)

    def delete(self, *path: str) -> JsonObject:
        return self._call("DELETE", _request_target(path, {}))

    def now(self) -> float:
        """The service's time: what every instant it tells is to be compared with."""
        return float(self.get("clock")["now"])

    def _call(
        self, method: str, target: str, body: Mapping[str, object] | None = None, patience_s: float = TIMEOUT_S
    ) -> JsonObject:
        payload = None if body is None else json.dumps(body).encode()
        try:
            return _parse_answer(*self._transport.send(method, target, payload, patience_s))
        except TimeoutError as error:
            raise Unavailable(
                f"the forewarn service {self.location} did not answer within {patience_s:.0f} s: try again, "
                "and look at its log if that goes on"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the forewarn service {self.location} broke off its answer: try again") from error


def send_request(
    connection: http.client.HTTPConnection, method: str, target: str, payload: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    """One question and its answer, whatever the connection is made of."""
    try:
        connection.connect()
        typed = {} if payload is None else {"Content-Type": "application/json"}
        connection.request(method, target, payload, {"Forewarn-Surface": "cli", **typed, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _request_target(path: tuple[str, ...], query: QueryParameters) -> str:
    """Segments are quoted whole, so that a name may hold a slash."""
    if not all(segment.strip() for segment in path):
        raise Rejected("the name is empty: write one (in a script, look for a variable that is not set)")
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
        raise ServiceFailure(f"the service answered status {status} with what is no JSON object: see its log")
    if status >= 400:
        raise _error_from_answer(status, view)
    return view


def _error_from_answer(status: int, view: JsonObject) -> ForewarnError:
    told = view.get("error")
    error: JsonObject = told if isinstance(told, dict) else {}
    message = str(error.get("message") or f"the service answered status {status} without a reason: see its log")
    if error.get("problems"):
        return InvalidFile(message, error["problems"], str(error.get("code")))
    return _ERROR_CLASSES.get(str(error.get("code")), ServiceFailure)(message)
