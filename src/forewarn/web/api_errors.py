"""Renders errors as the API's JSON error response."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from forewarn.base.times import encode_time
from forewarn.core.explain.preview import Preview
from forewarn.core.fleetfile.problems import FleetFileProblem, InvalidFleetFile
from forewarn.errors import Refused
from forewarn.web.authentication import AuthenticationRequired
from forewarn.web.errors import RETRY_AFTER_BY_STATUS, Surface, classify_error

CONFIRM_HEADER = "forewarn-confirm"  # of a request: `ask` has a change that a person has to confirm answered with 428


class FleetNotApplicable(Refused):
    """A valid fleet file cannot be applied to the running fleet now; nothing was changed. Becomes a 409.

    `problems` say why, each with its place in the file. `source` is the name of the file in the message.
    """

    def __init__(self, problems: Sequence[FleetFileProblem], *, source: str) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{source} cannot be applied, and nothing was changed: see its problems")


class ErrorView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong: a code for programs, a message for people, and the problems of a fleet file."""

    code: str  # such as NotFound or Refused
    message: str  # for people, with what to do instead
    problems: tuple[FleetFileProblem, ...] = ()  # the problems of a fleet file; left out of the JSON if there are none


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON body of an error response of the API: one object under the key `error`."""

    error: ErrorView


def error_response(error: Exception, surface: Surface = Surface.API) -> Response:
    """Return the JSON response for an error, in the words of `surface`; log an unexpected error (a 500)."""
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
    """Return a JSON error response with this status, code and message; adds no headers of its own."""
    body = msgspec.json.encode(ErrorResponse(error=ErrorView(code=code, message=message, problems=problems)))
    return Response(body, status_code=status, media_type="application/json", headers=headers)


class ConfirmationResponse(ErrorResponse, frozen=True, kw_only=True):
    """The JSON body of a 428: nothing was changed, and a person has to confirm what `preview` shows."""

    preview: Preview


def confirmation_required(preview: Preview) -> Response:
    """Return the 428 for a change that its caller wants to confirm first, and that has to be confirmed."""
    message = f"a person has to confirm this: {' '.join(preview.confirm)}"
    error = ErrorView(code="ConfirmationRequired", message=message.rstrip("."))
    body = msgspec.json.encode(ConfirmationResponse(error=error, preview=preview), enc_hook=encode_time)
    return Response(body, status_code=428, media_type="application/json")


def _fleet_problems(error: Exception) -> tuple[FleetFileProblem, ...]:
    return error.problems if isinstance(error, InvalidFleetFile | FleetNotApplicable) else ()
