"""Renders errors as ARM error responses: Azure's codes with our messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from forewarn.errors import Conflict, Forbidden, NotFound, Refused, Rejected, Unauthenticated, Unavailable
from forewarn.web.arm.routing import ArmResponse
from forewarn.web.authentication import AuthenticationRequired
from forewarn.web.connection_slots import ShareExceeded
from forewarn.web.errors import RETRY_AFTER_BY_STATUS, Surface, internal_error_message, message_for
from forewarn.web.request_parsing import BodyTooLarge

log = logging.getLogger(__name__)

# Subclasses come before their base classes: the first match wins.
_CODE_BY_ERROR: tuple[tuple[type[Exception], int, str], ...] = (
    (NotFound, 404, "ResourceNotFound"),
    (Refused, 409, "OperationNotAllowed"),
    (Unauthenticated, 401, "AuthenticationFailed"),
    (Forbidden, 403, "AuthorizationFailed"),
    (BodyTooLarge, 413, "RequestEntityTooLarge"),
    (Rejected, 400, "InvalidParameter"),
    (Conflict, 409, "Conflict"),
    (ShareExceeded, 429, "TooManyRequests"),
    (Unavailable, 503, "ServiceUnavailable"),
)
_HEADERS_BY_STATUS: dict[int, Mapping[str, str]] = {**RETRY_AFTER_BY_STATUS, 401: {"WWW-Authenticate": "Bearer"}}


class ArmError(Rejected):
    """An error of a call to the ARM facade, to be answered with this HTTP status, code and message.

    `code` is Azure's, such as `ResourceGroupNotFound`; `target` is the path of the invalid member of the body, or "".
    """

    def __init__(self, status: int, code: str, message: str, target: str = "") -> None:
        self.status, self.code, self.target = status, code, target
        super().__init__(message)


def arm_error_response(error: Exception) -> ArmResponse:
    """Return the ARM response to an error, with an ArmError's own status and code, or its class's."""
    if isinstance(error, ArmError):
        return make_arm_error(error.status, error.code, str(error), error.target)
    for error_type, status, code in _CODE_BY_ERROR:
        if isinstance(error, error_type):
            response = make_arm_error(status, code, message_for(error, Surface.ARM))
            challenge = {"WWW-Authenticate": error.challenge} if isinstance(error, AuthenticationRequired) else {}
            return replace(response, headers={**response.headers, **challenge})
    log.error("a request failed with an internal error", exc_info=error)
    return make_arm_error(500, "InternalServerError", internal_error_message(error))


def make_arm_error(status: int, code: str, message: str, target: str = "") -> ArmResponse:
    """Return an ARM error response, whose body is `{"error": {"code", "message", "target"}}`."""
    error = {"code": code, "message": message} | ({"target": target} if target else {})
    return ArmResponse(status=status, body={"error": error}, headers=_HEADERS_BY_STATUS.get(status, {}))
