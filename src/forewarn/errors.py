"""The error tree, ordered by what the caller should do.

    ForewarnError
     ├── Rejected            asking again will not help: the message says what to ask instead
     │    ├── NotFound           the named thing does not exist
     │    ├── Refused            the thing exists, but its state forbids the request now
     │    ├── Unauthenticated    the caller is not known
     │    └── Forbidden          the caller is known and has no permission
     ├── Conflict            another writer was first: read again, decide again
     └── Unavailable         the request is correct: try again later

A message names the thing and its id, its state, and what cannot be done. What to do instead is a `Remedy`: a code with
fields, which each surface (command line, API, portal, Azure's API) puts into its own words (`forewarn.web.errors`).
Where no surface does, as in the history and in tests with a lab, `full_message` has words that suit all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Remedy(StrEnum):
    """What the user can do instead of a failed request. `forewarn.web.errors` words it for each surface.

    The fields in the comments are the keyword arguments that a ForewarnError with this remedy must be given.
    """

    LIST_VMS = "list-vms"
    LIST_HOSTS = "list-hosts"
    LIST_SCOPES = "list-scopes"
    LIST_EVENTS = "list-events"  # those that are not over
    LIST_ALL_EVENTS = "list-all-events"
    LIST_ROLLOUTS = "list-rollouts"
    LIST_BUDGETS = "list-budgets"
    LIST_REQUESTS = "list-requests"  # the history shows them
    LIST_CLIENTS = "list-clients"
    LIST_GRANTS = "list-grants"
    LIST_WEBHOOKS = "list-webhooks"
    LIST_REPLAYS = "list-replays"
    LIST_FAULTS = "list-faults"
    LIST_FAULT_KINDS = "list-fault-kinds"
    LIST_EXPLAINABLE = "list-explainable"  # VMs, hosts, scopes, events, rollouts and requests
    EXPLAIN_EVENT = "explain-event"  # see the explanation of the event; field: event (its id)
    EXPLAIN_REMOVED_VM = "explain-removed-vm"  # see when and why it was removed; field: vm (its name)
    ALLOW_SHORT_NOTICE = "allow-short-notice"  # or give more notice; field: minimum (a duration in words)
    SHORT_NOTICE_IN_FILE = "short-notice-in-file"  # or give more notice, in a rollout file; field: minimum
    GIVE_MORE_NOTICE = "give-more-notice"  # a short notice is not possible; field: minimum (a duration in words)
    GIVE_NOTICE = "give-notice"  # a short notice was allowed, but no length was given
    REPAIR_HOST = "repair-host"  # field: host (its name)
    FAIL_HOST = "fail-host"  # if it has failed; field: host (its name)
    ADD_VMS = "add-vms"
    ADD_HOSTS = "add-hosts"
    CLEAR_FAULTS = "clear-faults"
    STOP_REPLAY = "stop-replay"  # or wait for its end; field: replay (its id)
    USE_LAB = "use-lab"  # production cannot do it
    ADD_VERB = "add-verb"  # to the hypervisor; field: setting (which adds it)
    CHANGE_HYPERVISOR = "change-hypervisor"  # to one that can do it
    RENEW_CLIENT_SECRET = "renew-client-secret"  # or choose another id; field: client (its id)
    ASK_FOR_ROLE = "ask-for-role"  # field: role
    USE_NEW_KEY = "use-new-key"  # a request key was used for something else before
    ASK_FOR_ANY_ROLE = "ask-for-any-role"  # field: external_id, empty for clients of our own


class ForewarnError(Exception):
    """An error for the user. `str(error)` is the message; `remedy_code` says what to do instead.

    `remedy_code` is None if the message says it, or if nothing helps. `remedy_fields` (the keyword arguments) are the
    values that the words of that remedy contain by name, such as the id of an event; see `Remedy`.
    """

    def __init__(self, message: str = "", remedy: Remedy | None = None, **fields: str) -> None:
        super().__init__(message)
        self.remedy_code = remedy
        self.remedy_fields = fields


class Rejected(ForewarnError):
    """The request is wrong or not allowed; it fails again unless something else changes first.

    It is the base of NotFound, Refused, Unauthenticated and Forbidden.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """One problem of a user's file."""

    line: int  # counted from 1; for a missing key that of its table; 0: in no line
    message: str  # what is wrong, a clause
    remedy: str  # what to do about it, a clause, such as "did you mean 'rules'?"

    def sentence(self, source: str) -> str:
        """Return the problem in one line, `source:line: what: remedy`, so that editors can jump to it."""
        place = f"{source}:{self.line}" if self.line else source
        return f"{place}: {self.message}: {self.remedy}"


class InvalidFile(Rejected):
    """A user's file is invalid. `problems` has all its problems, `source` is its name."""

    def __init__(
        self, problems: Iterable[FileProblem], *, source: str = "the file", message: str = "", code: str = "Rejected"
    ) -> None:
        self.problems, self.source, self.code = tuple(problems), source, code
        super().__init__(message or "\n".join(self.sentences()))

    def sentences(self) -> list[str]:
        """Return one line for each problem."""
        return [problem.sentence(self.source) for problem in self.problems]


class NotFound(Rejected):
    """The request names something that does not exist."""


class Refused(Rejected):
    """The thing exists, but its state forbids the request now."""


class Unauthenticated(Rejected):
    """The caller did not prove who they are, or the proof is not valid."""


class Forbidden(Rejected):
    """The caller is known, but has no permission for this request."""


class Conflict(ForewarnError):
    """Another writer changed the data that a decision was based on: read again and decide again."""


class Unavailable(ForewarnError):
    """The request is correct, but cannot be served now: try again later.

    It may have been carried out all the same, as after a lost connection, unless the function that raises it says not.
    """


# What to do instead, in words that name neither commands nor pages.
_PLAIN_REMEDIES: dict[Remedy, str] = {
    Remedy.LIST_VMS: "name a VM of the fleet",
    Remedy.LIST_HOSTS: "name a host of the fleet",
    Remedy.LIST_SCOPES: "name a scope of the fleet",
    Remedy.LIST_EVENTS: "name an event that is not over",
    Remedy.LIST_ALL_EVENTS: "name an event of the history",
    Remedy.LIST_ROLLOUTS: "name a rollout that exists",
    Remedy.LIST_BUDGETS: "name a budget that exists",
    Remedy.LIST_REQUESTS: "the history shows what was requested",
    Remedy.LIST_CLIENTS: "name a client that exists",
    Remedy.LIST_GRANTS: "name a grant that exists",
    Remedy.LIST_WEBHOOKS: "name a webhook that exists",
    Remedy.LIST_REPLAYS: "name a replay that exists",
    Remedy.LIST_FAULTS: "name a fault that is active",
    Remedy.LIST_FAULT_KINDS: "name a kind of fault that exists",
    Remedy.LIST_EXPLAINABLE: "name one that exists",
    Remedy.EXPLAIN_EVENT: "the explanation of event {event} says what happens",
    Remedy.EXPLAIN_REMOVED_VM: "the explanation of VM {vm} says when and why",
    Remedy.ALLOW_SHORT_NOTICE: "give {minimum} or more, or allow a shorter notice for testing",
    Remedy.SHORT_NOTICE_IN_FILE: "give {minimum} or more, or write short_notice = true to test with less",
    Remedy.GIVE_MORE_NOTICE: "give {minimum} or more, or none for the minimum",
    Remedy.GIVE_NOTICE: "give the notice",
    Remedy.REPAIR_HOST: "repair host {host} first",
    Remedy.FAIL_HOST: "if it has failed, mark host {host} as failed first",
    Remedy.ADD_VMS: "add VMs to the fleet",
    Remedy.ADD_HOSTS: "add hosts to the fleet",
    Remedy.CLEAR_FAULTS: "clear some of them",
    Remedy.STOP_REPLAY: "wait until replay {replay} is over, or stop it",
    Remedy.USE_LAB: "use a lab",
    Remedy.ADD_VERB: "add {setting} to the settings of the service",
    Remedy.CHANGE_HYPERVISOR: "choose another hypervisor",
    Remedy.RENEW_CLIENT_SECRET: "give another id, or give client {client} another secret",
    Remedy.USE_NEW_KEY: "give each request a key of its own",
    Remedy.ASK_FOR_ROLE: "ask an administrator for the role {role}",
    Remedy.ASK_FOR_ANY_ROLE: "ask an administrator for a role",
}


def full_message(error: ForewarnError) -> str:
    """Return the error's message followed by what to do instead, in words that name no command or page."""
    if error.remedy_code is None:
        return str(error)
    return join_remedy(str(error), _PLAIN_REMEDIES[error.remedy_code].format(**error.remedy_fields))


def join_remedy(message: str, remedy: str) -> str:
    """Return `message: remedy`, or `message remedy` after a question mark; the message if `remedy` is ""."""
    if not remedy:
        return message
    return f"{message} {remedy}" if message.endswith("?") else f"{message}: {remedy}"
