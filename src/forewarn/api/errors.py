"""No, said over HTTP: the error tree becomes a status and a body, here and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from forewarn.console.door import Stranger
from forewarn.core.proposal import BadFleet, Problem
from forewarn.errors import Conflict, Forbidden, NotFound, Refused, Rejected, Unauthenticated, Unavailable

log = logging.getLogger(__name__)


class NotApplicable(Refused):
    """A sound fleet file that the running fleet does not allow to be applied now."""

    def __init__(self, problems: Sequence[Problem], *, source: str) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{source} cannot be applied, and nothing was changed: see its problems")


class ErrorView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str
    problems: tuple[Problem, ...] = ()


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorView


# The first that fits counts.
_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (NotFound, 404, "NotFound"),
    (Refused, 409, "Refused"),
    (Unauthenticated, 401, "Unauthenticated"),
    (Forbidden, 403, "Forbidden"),
    (Rejected, 400, "Rejected"),
    (Conflict, 409, "Conflict"),
    (Unavailable, 503, "Unavailable"),
)


def response_for(error: Exception) -> Response:
    status, code, message = _told(error)
    challenge = error.challenge if isinstance(error, Stranger) else "Bearer"
    headers = {503: {"Retry-After": "1"}, 401: {"WWW-Authenticate": challenge}}.get(status, {})
    return said(status, code, message, problems=_problems(error), headers=headers)


def outcome_of(error: Exception) -> tuple[int, str]:
    """The status and the sentence, for whoever says it in another form."""
    status, _, message = _told(error)
    return status, message


def _told(error: Exception) -> tuple[int, str, str]:
    for of, status, code in _STATUS:
        if isinstance(error, of):
            return status, code, _message(error)
    log.error("a call failed that should not have", exc_info=error)
    return 500, "Internal", f"forewarn failed inside ({type(error).__name__}): its log says more; please report it"


def said(
    status: int, code: str, message: str, *, problems: tuple[Problem, ...] = (), headers: dict[str, str] | None = None
) -> Response:
    body = msgspec.json.encode(Refusal(error=ErrorView(code=code, message=message, problems=problems)))
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _problems(error: Exception) -> tuple[Problem, ...]:
    return error.problems if isinstance(error, BadFleet | NotApplicable) else ()


def _message(error: Exception) -> str:
    if isinstance(error, BadFleet):
        count = len(error.problems)
        return f"{error.source} has {count} problem{'s' if count != 1 else ''}: nothing was changed"
    return str(error)
