"""An event as VMs are shown it: the document of its scope in every api-version, as the endpoint would send it."""

from __future__ import annotations

import json
from collections.abc import Callable

from msgspec.structs import replace

from forewarn.console.views import View
from forewarn.core.enablement import enable
from forewarn.core.event import Event, Status
from forewarn.core.projection import document_for, notice_for
from forewarn.core.scope import Scope
from forewarn.protocol.codec import encode
from forewarn.protocol.document import Document, Kind
from forewarn.protocol.exchange import Rules
from forewarn.protocol.versions import shows_kind


class Wording(View, frozen=True, kw_only=True):
    """What one version says."""

    version: str
    text: str  # as it is sent; "": nothing
    hidden: str  # why the event is not in it; "": it is

    @property
    def pretty(self) -> str:
        return json.dumps(json.loads(self.text), indent=2) if self.text else ""


class OnTheWire(View, frozen=True, kw_only=True):
    is_shown: bool  # by a document, now
    told: str  # a sentence about what follows
    versions: tuple[Wording, ...]  # newest first


_GIVEN = "This is what every VM of the scope is given now, in each api-version, byte for byte."
_WOULD_BE_GIVEN = (
    "Nobody of the scope asks for events, so nobody is told. This is what the first VM that asks will be given, "
    "in each api-version, byte for byte."
)
_NO_MORE = (
    "No document shows it any more. From the record, this is the form in which it was last shown; the documents of "
    "that time are not kept, so neither their incarnation nor their other events can be told."
)


def on_the_wire(event: Event, scope: Scope | None, rules_for: Callable[[str], Rules]) -> OnTheWire:
    kind = event.row.kind
    if kind is None or not event.listed:
        told = "No document ever showed it: it was carried out at once, without an event."
        return OnTheWire(is_shown=False, told=told, versions=())
    rules = rules_for(scope.present[0].location if scope is not None and scope.present else "")
    if event.is_live and scope is not None:
        # Who asks first enables the scope, and is given what is pending.
        asked = enable(scope, by="", now=0.0)
        told = _GIVEN if scope.is_enabled else _WOULD_BE_GIVEN
        return OnTheWire(is_shown=True, told=told, versions=_worded(document_for(asked), kind, rules))
    return OnTheWire(is_shown=False, told=_NO_MORE, versions=_last_worded(event, kind, rules))


def _worded(document: Document, kind: Kind, rules: Rules) -> tuple[Wording, ...]:
    return tuple(
        Wording(version=version, text=_text(document, version, rules), hidden=_hidden(version, kind))
        for version in reversed(rules.versions)
    )


def _last_worded(event: Event, kind: Kind, rules: Rules) -> tuple[Wording, ...]:
    """The event alone, Started if it ever was."""
    status = Status.SCHEDULED if event.started_at is None else Status.STARTED
    roles = event.scope_id.startswith("service:")
    alone = Document(incarnation=0, notices=(notice_for(replace(event, status=status)),), roles=roles)
    return tuple(
        Wording(version=version, text=_only_event(_text(alone, version, rules)), hidden=_hidden(version, kind))
        for version in reversed(rules.versions)
    )


def _only_event(document: str) -> str:
    events = json.loads(document)["Events"]
    return json.dumps(events[0], separators=(",", ":")) if events else ""


def _text(document: Document, version: str, rules: Rules) -> str:
    return encode(document, version, iso_dates=rules.iso_dates).decode("ascii")


def _hidden(version: str, kind: Kind) -> str:
    if shows_kind(version, kind):
        return ""
    return f"{version} does not show a {kind}: a VM that asks with it is not told of this event."
