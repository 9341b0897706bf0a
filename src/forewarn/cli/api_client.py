"""The operator's API, whichever way the service is reached. What it refuses becomes our error tree again, here."""

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

ROOT = "/forewarn/v1"
PATIENCE_S = 60.0
View = dict[str, Any]  # one JSON object of the service's answers
Query = Mapping[str, object]  # those that are None are left out


class NotRunning(Unavailable):
    """No service answers in the data directory."""


class Broken(ForewarnError):
    """The service failed: nothing the caller can mend."""


class Faulty(Rejected):
    """A file with problems, each with its line."""

    def __init__(self, message: str, problems: list[View], code: str = "Rejected") -> None:
        super().__init__(message)
        self.code = code
        self.problems = problems
        self.source = "the file"

    def lines(self) -> list[str]:
        """One sentence per problem, in the form that editors can jump to."""
        return [f"{self._place(problem)}: {problem['what']}: {problem['remedy']}" for problem in self.problems]

    def _place(self, problem: View) -> str:
        return f"{self.source}:{problem['line']}" if problem.get("line") else self.source


_ERRORS: dict[str, type[ForewarnError]] = {
    "Rejected": Rejected,
    "NotFound": NotFound,
    "Refused": Refused,
    "Unauthenticated": Unauthenticated,
    "Forbidden": Forbidden,
    "Conflict": Conflict,
    "Unavailable": Unavailable,
}


def code_of(error: ForewarnError) -> str:
    """What the service calls this error, whoever met it."""
    if isinstance(error, Faulty):
        return error.code
    return next((code for code, sort in reversed(_ERRORS.items()) if isinstance(error, sort)), "Internal")


class Transport(Protocol):
    """A way to one service: its unix socket, or HTTPS."""

    @property
    def where(self) -> str:
        """`in DIRECTORY` or `at URL`, as sentences go on."""

    def send(self, method: str, target: str, payload: bytes | None, patience_s: float) -> tuple[int, bytes]:
        """Status and body of the answer. What breaks on the way may come as it is."""


class Api:
    """The operator's API of one service."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def where(self) -> str:
        return self._transport.where

    def get(self, *path: str, query: Query | None = None, patience_s: float = PATIENCE_S) -> View:
        return self._ask("GET", _target(path, query or {}), patience_s=patience_s)

    def post(self, *path: str, body: Mapping[str, object] | None = None, patience_s: float = PATIENCE_S) -> View:
        return self._ask("POST", _target(path, {}), body or {}, patience_s=patience_s)

    def delete(self, *path: str) -> View:
        return self._ask("DELETE", _target(path, {}))

    def now(self) -> float:
        """The service's time: what every instant it tells is to be compared with."""
        return float(self.get("clock")["now"])

    def _ask(
        self, method: str, target: str, body: Mapping[str, object] | None = None, patience_s: float = PATIENCE_S
    ) -> View:
        payload = None if body is None else json.dumps(body).encode()
        try:
            return _view(*self._transport.send(method, target, payload, patience_s))
        except TimeoutError as error:
            raise Unavailable(
                f"the forewarn service {self.where} did not answer within {patience_s:.0f} s: try again, "
                "and look at its log if that goes on"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the forewarn service {self.where} broke off its answer: try again") from error


def exchange(
    connection: http.client.HTTPConnection, method: str, target: str, payload: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    """One question and its answer, whatever the connection is made of."""
    try:
        connection.connect()
        typed = {} if payload is None else {"Content-Type": "application/json"}
        connection.request(method, target, payload, {**typed, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _target(path: tuple[str, ...], query: Query) -> str:
    """Segments are quoted whole, so that a name may hold a slash."""
    if not all(segment.strip() for segment in path):
        raise Rejected("the name is empty: write one (in a script, look for a variable that is not set)")
    given = {name: _parameter(value) for name, value in query.items() if value is not None}
    tail = f"?{urlencode(given)}" if given else ""
    return "/".join([ROOT, *(quote(segment, safe="") for segment in path)]) + tail


def _parameter(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _view(status: int, raw: bytes) -> View:
    try:
        view = json.loads(raw)
    except ValueError:
        view = None
    if not isinstance(view, dict):
        raise Broken(f"the service answered status {status} with what is no JSON object: see its log")
    if status >= 400:
        raise _error(status, view)
    return view


def _error(status: int, view: View) -> ForewarnError:
    told = view.get("error")
    error: View = told if isinstance(told, dict) else {}
    message = str(error.get("message") or f"the service answered status {status} without a reason: see its log")
    if error.get("problems"):
        return Faulty(message, error["problems"], str(error.get("code")))
    return _ERRORS.get(str(error.get("code")), Broken)(message)
