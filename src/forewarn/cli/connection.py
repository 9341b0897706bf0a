"""HTTP to the service over its unix socket. What it refuses becomes our error tree again, once, here."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from forewarn.cli.place import SOCKET
from forewarn.errors import Conflict, ForewarnError, NotFound, Refused, Rejected, Unavailable

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
    "Conflict": Conflict,
    "Unavailable": Unavailable,
}


def code_of(error: ForewarnError) -> str:
    """What the service calls this error, whoever met it."""
    if isinstance(error, Faulty):
        return error.code
    return next((code for code, sort in reversed(_ERRORS.items()) if isinstance(error, sort)), "Internal")


class Api:
    """The operator's API of one service."""

    def __init__(self, data: Path) -> None:
        self._data = data

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
        connection = _UnixConnection(self._data, patience_s)
        try:
            return self._exchange(connection, method, target, body)
        except TimeoutError as error:
            raise Unavailable(
                f"the forewarn service in {self._data} did not answer within {patience_s:.0f} s: try again, "
                "and look at its log if that goes on"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the forewarn service in {self._data} broke off its answer: try again") from error
        finally:
            connection.close()

    def _exchange(
        self, connection: _UnixConnection, method: str, target: str, body: Mapping[str, object] | None
    ) -> View:
        connection.connect()
        payload = None if body is None else json.dumps(body).encode()
        headers = {} if payload is None else {"Content-Type": "application/json"}
        connection.request(method, target, payload, headers)
        answer = connection.getresponse()
        return _view(answer.status, answer.read())


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, data: Path, patience_s: float) -> None:
        super().__init__("localhost", timeout=patience_s)
        self._data = data

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        path = self._data / SOCKET
        try:
            self.sock.connect(str(path))
        except PermissionError as error:
            raise NotRunning(
                f"the forewarn service in {self._data} belongs to another user: run this as that user, "
                "or name another service with --data"
            ) from error
        except OSError as error:
            if "too long" in str(error):
                raise Rejected(f"the path {str(path)!r} is too long for a socket: choose a shorter --data") from error
            raise NotRunning(f"no forewarn service answers in {self._data}: start one with `forewarn up`") from error


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
