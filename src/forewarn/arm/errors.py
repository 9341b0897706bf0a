"""Renders errors as ARM error responses: Azure's codes with our messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from forewarn.arm.routing import ArmResponse
from forewarn.errors import Conflict, Forbidden, NotFound, Refused, Rejected, Unauthenticated, Unavailable
from forewarn.web.authentication import AuthenticationRequired
from forewarn.web.remedies import Surface, message_for
from forewarn.web.request_parsing import BodyTooLarge

log = logging.getLogger(__name__)

# The first that fits counts.
_CODE_BY_ERROR: tuple[tuple[type[Exception], int, str], ...] = (
    (NotFound, 404, "ResourceNotFound"),
    (Refused, 409, "OperationNotAllowed"),
    (Unauthenticated, 401, "AuthenticationFailed"),
    (Forbidden, 403, "AuthorizationFailed"),
    (BodyTooLarge, 413, "RequestEntityTooLarge"),
    (Rejected, 400, "InvalidParameter"),
    (Conflict, 409, "Conflict"),
    (Unavailable, 503, "ServiceUnavailable"),
)
_HEADERS_BY_STATUS: dict[int, Mapping[str, str]] = {503: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}


class ArmError(Rejected):
    """A refusal for which Azure has a code of its own."""

    def __init__(self, status: int, code: str, message: str, target: str = "") -> None:
        self.status, self.code, self.target = status, code, target
        super().__init__(message)


def arm_error_response(error: Exception) -> ArmResponse:
    if isinstance(error, ArmError):
        return make_arm_error(error.status, error.code, str(error), error.target)
    for of, status, code in _CODE_BY_ERROR:
        if isinstance(error, of):
            answer = make_arm_error(status, code, message_for(error, Surface.ARM))
            challenge = {"WWW-Authenticate": error.challenge} if isinstance(error, AuthenticationRequired) else {}
            return replace(answer, headers={**answer.headers, **challenge})
    log.error("a call failed that should not have", exc_info=error)
    inside = f"forewarn failed inside ({type(error).__name__}): its log says more; please report it"
    return make_arm_error(500, "InternalServerError", inside)


def make_arm_error(status: int, code: str, message: str, target: str = "") -> ArmResponse:
    """`target` is the member that is refused, where it is one."""
    told = {"code": code, "message": message} | ({"target": target} if target else {})
    body = {"error": told}
    return ArmResponse(status=status, body=body, headers=_HEADERS_BY_STATUS.get(status, {}))
