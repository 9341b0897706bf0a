"""Maps errors to an HTTP status, a code and a message; each surface renders them in its own format."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import NamedTuple

from forewarn.core.fleetfile.problems import InvalidFleetFile
from forewarn.errors import (
    Conflict,
    Forbidden,
    ForewarnError,
    NotFound,
    Refused,
    Rejected,
    Remedy,
    Unauthenticated,
    Unavailable,
    join_remedy,
)
from forewarn.web.connection_slots import ShareExceeded
from forewarn.web.request_parsing import BodyTooLarge

log = logging.getLogger(__name__)


# Words a remedy for each surface: command line, API, portal and Azure's API.
#
# The core raises an error with a `Remedy` and fields. A user then reads what to do in the words of the program in
# front of them: a browser user never reads about an option, an API client never about a button.

SURFACE_HEADER = "forewarn-surface"  # our command line sends "cli": it shows the message of an error as it comes


class Surface(StrEnum):
    """The program that the user has in front of them, which decides the words of a remedy."""

    CLI = "cli"  # our command line
    API = "api"  # any other client of our API
    PORTAL = "portal"  # a browser
    ARM = "arm"  # Azure's clients


class _Wording(NamedTuple):
    cli: str
    api: str
    portal: str
    arm: str = ""  # empty: as in the API


_WORDINGS: dict[Remedy, _Wording] = {
    Remedy.LIST_VMS: _Wording(
        "`forewarn fleet show` lists the VMs",
        "GET /forewarn/v1/fleet lists the VMs",
        "choose one on the Fleet page",
        "`az vm list` and `az vmss list-instances` list the VMs",
    ),
    Remedy.LIST_HOSTS: _Wording(
        "`forewarn fleet show` lists the hosts",
        "GET /forewarn/v1/fleet lists the hosts",
        "choose one on the Hosts page",
    ),
    Remedy.LIST_SCOPES: _Wording(
        "`forewarn fleet show` lists the scopes",
        "GET /forewarn/v1/fleet lists the scopes",
        "choose one on the Fleet page",
    ),
    Remedy.LIST_EVENTS: _Wording(
        "`forewarn events` lists those under way",
        "GET /forewarn/v1/events lists those under way",
        "choose one on the Timeline page",
    ),
    Remedy.LIST_ALL_EVENTS: _Wording(
        "`forewarn events --all` lists them",
        "GET /forewarn/v1/events?all=true lists them",
        "choose one on the Timeline page",
    ),
    Remedy.LIST_ROLLOUTS: _Wording(
        "`forewarn rollout list` lists them", "GET /forewarn/v1/rollouts lists them", "choose one on the Rollouts page"
    ),
    Remedy.LIST_BUDGETS: _Wording(
        "`forewarn budget list` lists them", "GET /forewarn/v1/budgets lists them", "the Rollouts page shows them"
    ),
    Remedy.LIST_REQUESTS: _Wording(
        "`forewarn history` shows what was requested",
        "GET /forewarn/v1/history shows what was requested",
        "the History page shows what was requested",
    ),
    Remedy.LIST_CLIENTS: _Wording(
        "`forewarn access show` lists the clients",
        "GET /forewarn/v1/access lists the clients",
        "ask an administrator which clients exist",
    ),
    Remedy.LIST_GRANTS: _Wording(
        "`forewarn access show` lists the grants",
        "GET /forewarn/v1/access lists the grants",
        "ask an administrator which grants exist",
    ),
    Remedy.LIST_WEBHOOKS: _Wording(
        "`forewarn webhook list` lists them",
        "GET /forewarn/v1/webhooks lists them",
        "ask an administrator which webhooks exist",
    ),
    Remedy.LIST_REPLAYS: _Wording(
        "`forewarn replays` lists them", "GET /forewarn/v1/replays lists them", "the Lab page lists them"
    ),
    Remedy.LIST_FAULTS: _Wording(
        "`forewarn fault list` lists those that are",
        "GET /forewarn/v1/faults lists those that are",
        "the Lab page lists those that are",
    ),
    Remedy.LIST_FAULT_KINDS: _Wording(
        "`forewarn fault list --kinds` lists them",
        "GET /forewarn/v1/faults lists the kinds",
        "choose one of the list",
    ),
    Remedy.LIST_EXPLAINABLE: _Wording(
        "`forewarn fleet show`, `forewarn events --all` and `forewarn rollout list` list them",
        "GET /forewarn/v1/fleet, /forewarn/v1/events?all=true and /forewarn/v1/rollouts list them",
        "start at the Fleet page",
    ),
    Remedy.EXPLAIN_EVENT: _Wording(
        "follow it with `forewarn explain {event}`",
        "GET /forewarn/v1/explain/{event} says what happens",
        "the event's page shows what happens",
    ),
    Remedy.EXPLAIN_REMOVED_VM: _Wording(
        "`forewarn explain {vm}` says when and why",
        "GET /forewarn/v1/explain/{vm} says when and why",
        "the History page says when and why",
    ),
    Remedy.ALLOW_SHORT_NOTICE: _Wording(
        "give {minimum} or more, or say --short-notice to test with less",
        "give {minimum} or more, or set short_notice to test with less",
        "give {minimum} or more, or allow a shorter notice for testing",
    ),
    Remedy.SHORT_NOTICE_IN_FILE: _Wording(
        "give {minimum} or more, or write short_notice = true to test with less",
        "give {minimum} or more, or write short_notice = true to test with less",
        "give {minimum} or more, or write short_notice = true to test with less",
    ),
    Remedy.GIVE_MORE_NOTICE: _Wording(
        "give {minimum} or more with --notice, or omit it",
        "give {minimum} or more as notice_s, or leave it out",
        "give {minimum} or more, or leave it empty",
    ),
    Remedy.GIVE_NOTICE: _Wording("give it with --notice", "give it as notice_s", "fill in the notice"),
    Remedy.REPAIR_HOST: _Wording(
        "repair it first with `forewarn repair {host}`",
        "repair it first with POST /forewarn/v1/hosts/{host}/repair",
        "repair it first on its page",
    ),
    Remedy.FAIL_HOST: _Wording(
        "if it has failed, say so first with `forewarn fail {host}`",
        "if it has failed, say so first with POST /forewarn/v1/hosts/{host}/fail",
        "if it has failed, say so first on its page",
    ),
    Remedy.ADD_VMS: _Wording(
        "add some with `forewarn fleet apply`",
        "add some with POST /forewarn/v1/fleet/apply",
        "ask an administrator to add VMs to the fleet file",
    ),
    Remedy.ADD_HOSTS: _Wording(
        "add some with `forewarn fleet apply`, or `forewarn fleet add-host`",
        "add some with POST /forewarn/v1/fleet/apply, or POST /forewarn/v1/fleet/hosts",
        "ask an administrator to add hosts to the fleet file",
    ),
    Remedy.CLEAR_FAULTS: _Wording(
        "clear some with `forewarn fault clear`",
        "clear some with POST /forewarn/v1/faults/clear",
        "clear some on the Lab page",
    ),
    Remedy.STOP_REPLAY: _Wording(
        "wait until it is over, or stop it with `forewarn replays --stop {replay}`",
        "wait until it is over, or stop it with DELETE /forewarn/v1/replays/{replay}",
        "wait until it is over",
    ),
    Remedy.USE_LAB: _Wording(
        "use a lab (`forewarn up`)", "use a service that runs as a lab", "use the portal of a lab"
    ),
    Remedy.ADD_VERB: _Wording(
        "add {setting} to the service's settings file, and restart the service",
        "its setting {setting} adds that",
        "ask an administrator to add {setting} to the settings of the service",
    ),
    Remedy.CHANGE_HYPERVISOR: _Wording(
        "choose another with the setting 'hypervisor', and restart the service",
        "its setting 'hypervisor' chooses another",
        "ask an administrator to choose another hypervisor",
    ),
    Remedy.RENEW_CLIENT_SECRET: _Wording(
        "give another id, or give this one another secret with `forewarn access client renew {client}`",
        "give another id, or give this one another secret with POST /forewarn/v1/access/clients/{client}/secret",
        "give another id",
    ),
    Remedy.USE_NEW_KEY: _Wording(
        "run the command again",
        "give each request an Idempotency-Key of its own",
        "fill in the form again",
    ),
    Remedy.ASK_FOR_ROLE: _Wording(
        "ask an administrator for the role {role} (`forewarn access grant`)",
        "ask an administrator for the role {role}",
        "ask an administrator for the role {role}",
    ),
    Remedy.ASK_FOR_ANY_ROLE: _Wording(
        "ask an administrator for one (`forewarn access grant`)",
        "ask an administrator for one",
        "ask an administrator for one",
    ),
}
_GRANT_TO_EXTERNAL = "ask an administrator for one (`forewarn access grant ROLE --to-external {external_id}`)"


def message_for(error: Exception, surface: Surface) -> str:
    """Return the error's message, followed by what to do instead in the words of the surface."""
    return join_remedy(str(error), _remedy_text(error, surface) if isinstance(error, ForewarnError) else "")


def _remedy_text(error: ForewarnError, surface: Surface) -> str:
    """What to do instead, as a clause in the words of the surface; empty if the error has no remedy."""
    if error.remedy_code is None:
        return ""
    if error.remedy_code is Remedy.ASK_FOR_ANY_ROLE and error.remedy_fields["external_id"]:
        # The id is the issuer's, long, and only the user sees it: the administrator needs it for the grant.
        return _GRANT_TO_EXTERNAL.format(**error.remedy_fields)
    wording = _WORDINGS[error.remedy_code]
    return (getattr(wording, surface) or wording.api).format(**error.remedy_fields)


def surface_of(header: str | None) -> Surface:
    """Return the surface that the header SURFACE_HEADER names: CLI for our command line, else API."""
    return Surface.CLI if header == Surface.CLI else Surface.API


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
