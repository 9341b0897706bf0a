"""No, said as Azure Resource Manager says it: its codes, our sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from forewarn.console.arm.route import ArmAnswer
from forewarn.console.door import Stranger
from forewarn.errors import Conflict, Forbidden, NotFound, Refused, Rejected, Unauthenticated, Unavailable

log = logging.getLogger(__name__)

# The first that fits counts.
_CODES: tuple[tuple[type[Exception], int, str], ...] = (
    (NotFound, 404, "ResourceNotFound"),
    (Refused, 409, "OperationNotAllowed"),
    (Unauthenticated, 401, "AuthenticationFailed"),
    (Forbidden, 403, "AuthorizationFailed"),
    (Rejected, 400, "InvalidParameter"),
    (Conflict, 409, "Conflict"),
    (Unavailable, 503, "ServiceUnavailable"),
)
_HEADERS: dict[int, Mapping[str, str]] = {503: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}


class Coded(Rejected):
    """A refusal for which Azure has a code of its own."""

    def __init__(self, status: int, code: str, message: str, target: str = "") -> None:
        self.status, self.code, self.target = status, code, target
        super().__init__(message)


def answer_for(error: Exception) -> ArmAnswer:
    if isinstance(error, Coded):
        return refusal(error.status, error.code, str(error), error.target)
    for of, status, code in _CODES:
        if isinstance(error, of):
            answer = refusal(status, code, str(error))
            challenge = {"WWW-Authenticate": error.challenge} if isinstance(error, Stranger) else {}
            return replace(answer, headers={**answer.headers, **challenge})
    log.error("a call failed that should not have", exc_info=error)
    inside = f"forewarn failed inside ({type(error).__name__}): its log says more; please report it"
    return refusal(500, "InternalServerError", inside)


def refusal(status: int, code: str, message: str, target: str = "") -> ArmAnswer:
    """`target` is the member that is refused, where it is one."""
    told = {"code": code, "message": message} | ({"target": target} if target else {})
    body = {"error": told}
    return ArmAnswer(status=status, body=body, headers=_HEADERS.get(status, {}))
