"""Renders errors as the API's JSON error response."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from forewarn.core.fleetfile.problems import FleetFileProblem, InvalidFleetFile
from forewarn.errors import Refused
from forewarn.web.authentication import AuthenticationRequired
from forewarn.web.errors import RETRY_AFTER_BY_STATUS, classify_error
from forewarn.web.remedies import Surface


class FleetNotApplicable(Refused):
    """A valid fleet file cannot be applied to the running fleet now; `problems` say why; a 409.

    `source` is the name of the file in the message.
    """

    def __init__(self, problems: Sequence[FleetFileProblem], *, source: str) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{source} cannot be applied, and nothing was changed: see its problems")


class ErrorView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The code and message of an error; `problems` only for a fleet file."""

    code: str  # such as NotFound or Refused
    message: str  # for people, with what to do instead
    problems: tuple[FleetFileProblem, ...] = ()


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON body of an error response of the API: one object under the key `error`."""

    error: ErrorView


def error_response(error: Exception, surface: Surface = Surface.API) -> Response:
    """The JSON response for an error, in the words of `surface`; logs an unexpected error, a 500.

    A 429 or 503 has the header Retry-After, a 401 has WWW-Authenticate; the errors of a fleet file have its problems.
    """
    status, code, message = classify_error(error, surface)
    challenge = error.challenge if isinstance(error, AuthenticationRequired) else "Bearer"
    headers = {**RETRY_AFTER_BY_STATUS, 401: {"WWW-Authenticate": challenge}}.get(status, {})
    return make_error_response(status, code, message, problems=_fleet_problems(error), headers=headers)


def make_error_response(
    status: int,
    code: str,
    message: str,
    *,
    problems: tuple[FleetFileProblem, ...] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """A JSON error response with this status, code and message; adds no headers of its own.

    `problems` are those of a fleet file; without any, the body has no such key.
    """
    body = msgspec.json.encode(ErrorResponse(error=ErrorView(code=code, message=message, problems=problems)))
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _fleet_problems(error: Exception) -> tuple[FleetFileProblem, ...]:
    return error.problems if isinstance(error, InvalidFleetFile | FleetNotApplicable) else ()
