"""Maps errors to an HTTP status, a code and a message; each surface renders them in its own format."""

from __future__ import annotations

import logging

from forewarn.core.fleetfile.problems import InvalidFleetFile
from forewarn.errors import Conflict, Forbidden, NotFound, Refused, Rejected, Unauthenticated, Unavailable
from forewarn.web.connection_slots import ShareExceeded
from forewarn.web.remedies import Surface, message_for
from forewarn.web.request_parsing import BodyTooLarge

log = logging.getLogger(__name__)

# Subclasses come before their base classes: the first match wins.
_STATUS_BY_ERROR: tuple[tuple[type[Exception], int, str], ...] = (
    (NotFound, 404, "NotFound"),
    (Refused, 409, "Refused"),
    (Unauthenticated, 401, "Unauthenticated"),
    (Forbidden, 403, "Forbidden"),
    (BodyTooLarge, 413, "Rejected"),
    (Rejected, 400, "Rejected"),
    (Conflict, 409, "Conflict"),
    (ShareExceeded, 429, "TooManyRequests"),
    (Unavailable, 503, "Unavailable"),
)
RETRY_AFTER_BY_STATUS = {status: {"Retry-After": "1"} for status in (429, 503)}  # headers; seconds


def status_and_message(error: Exception, surface: Surface) -> tuple[int, str]:
    """Return the HTTP status of an error, and its message with a remedy in the words of the surface."""
    status, _, message = classify_error(error, surface)
    return status, message


def classify_error(error: Exception, surface: Surface) -> tuple[int, str, str]:
    """Return the HTTP status, the API's error code and the message, with a remedy in the surface's words."""
    for error_type, status, code in _STATUS_BY_ERROR:
        if isinstance(error, error_type):
            return status, code, _error_message(error, surface)
    log.error("a request failed with an internal error", exc_info=error)
    return 500, "Internal", internal_error_message(error)


def internal_error_message(error: Exception) -> str:
    """Return the message for an unexpected error: it names the class, and refers to the log. Logs nothing."""
    return f"forewarn failed with an internal error ({type(error).__name__}): see its log, and please report it"


def _error_message(error: Exception, surface: Surface) -> str:
    if isinstance(error, InvalidFleetFile):
        count = len(error.problems)
        return f"{error.source} has {count} problem{'s' if count != 1 else ''}: nothing was changed"
    return message_for(error, surface)
