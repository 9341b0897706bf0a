"""One request through the proxy with its answer, and what the timeline shows of it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from forewarn.crash_test.answers import Concerns, SpoiledAnswer
from forewarn.crash_test.timeline import Approved, DeliveredEvent, OtherRequest, Polled, Poller
from forewarn.protocol.approval import InvalidApproval, parse_approval
from forewarn.protocol.codec import InvalidDocument, Received, decode_document
from forewarn.protocol.exchange import has_metadata_header
from forewarn.protocol.http_message import HttpRequest, RequestTarget, parse_target

_MAX_OTHER_EVENTS = 20  # of a huge substitute document, that the timeline shows beside the service's own events
_MAX_PATH_CHARACTERS = 200


class RequestKind(StrEnum):
    """What a handler's request is for: POLL, APPROVAL or OTHER."""

    POLL = "poll"  # GET of the scheduled events
    APPROVAL = "approval"  # POST to the scheduled events
    OTHER = "other"  # another path, or another method


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request of a handler through the proxy, and what it got; filled in while the answer is sent."""

    request: HttpRequest  # of invalid HTTP only method and target
    at: float  # when the request was complete
    is_valid: bool = True  # False: not valid HTTP, so that only the request line could be read
    substitute: str = ""  # the name of the substitute answer; "": the service's own
    status: int | None = None  # of the answer, once its first bytes are sent; None: nothing was sent
    body: bytes = b""  # of the answer, as far as it is meant to be sent
    service_body: bytes = b""  # of the service's own answer
    answered_at: float | None = None  # when the last byte was sent; None: it was not, or the client was gone
    was_prepared: bool | None = None  # of an approval: what the probe `prepared` said; None: no answer
    is_recorded: bool = False  # whether its observation was recorded

    @property
    def kind(self) -> RequestKind:
        """Whether this is a poll, an approval or another request; paths are compared ignoring letter case."""
        target = self._target
        if target is None or not _is_scheduled_events(target.lower_path()):
            return RequestKind.OTHER
        return {"GET": RequestKind.POLL, "POST": RequestKind.APPROVAL}.get(self.request.method, RequestKind.OTHER)

    @property
    def version(self) -> str:
        target = self._target
        return "" if target is None else target.parameter("api-version") or ""

    def concerns(self, answer: SpoiledAnswer) -> bool:
        """Return whether this substitute answer is for a request of this kind and api-version."""
        if self.version in answer.served_versions:
            return False
        match answer.concerns:
            case Concerns.POLLS:
                return self.kind is RequestKind.POLL
            case Concerns.APPROVALS:
                return self.kind is RequestKind.APPROVAL
            case Concerns.ALL:
                return True

    def observation(self, vm: str, by: Poller) -> Polled | Approved | OtherRequest:
        """Return what the timeline shows of this exchange: a poll, an approval, or another request."""
        match self.kind:
            case RequestKind.POLL:
                return self._poll(vm, by)
            case RequestKind.APPROVAL:
                return self._approval(vm, by)
            case RequestKind.OTHER:
                path = self.request.target.partition("?")[0][:_MAX_PATH_CHARACTERS]
                method = self.request.method[:_MAX_PATH_CHARACTERS]
                return OtherRequest(at=self.at, vm=vm, by=by, method=method, path=path, status=self.status)

    def _poll(self, vm: str, by: Poller) -> Polled:
        document = _received_document(self.body) if self.status == 200 else None
        return Polled(
            at=self.at,
            vm=vm,
            by=by,
            status=self.status,
            version=self.version,
            has_header=has_metadata_header(self.request),
            incarnation=None if document is None else document.incarnation,
            events=() if document is None else tuple(self._delivered_events(document)),
            answered_at=self.answered_at,
            substitute=self.substitute,
        )

    def _approval(self, vm: str, by: Poller) -> Approved:
        event_ids, problem = self._approved_events()
        return Approved(
            at=self.at,
            vm=vm,
            by=by,
            event_ids=event_ids,
            status=self.status,
            version=self.version,
            has_header=has_metadata_header(self.request),
            problem=problem,
            substitute=self.substitute,
            was_prepared=self.was_prepared,
        )

    def _approved_events(self) -> tuple[tuple[str, ...], str]:
        """The ids in the body, in upper case, and why it cannot be read ("": it can)."""
        if not self.is_valid:
            return (), "The request is not HTTP"
        try:
            return parse_approval(self.request.body), ""
        except InvalidApproval as error:
            return (), str(error)

    def _delivered_events(self, document: Received) -> Iterator[DeliveredEvent]:
        own = _received_document(self.service_body)
        own_ids = frozenset() if own is None else frozenset(event.id for event in own.events)
        others = 0
        for event in document.events:
            if event.id not in own_ids:
                others += 1
                if others > _MAX_OTHER_EVENTS:
                    continue
            kind = event.raw.get("EventType")
            yield DeliveredEvent(
                id=event.id,
                kind=kind if isinstance(kind, str) else event.kind,
                status=event.status,
                vms=event.resources,
            )

    @property
    def _target(self) -> RequestTarget | None:
        return parse_target(self.request.target)


def unreadable_request(raw: bytes) -> HttpRequest:
    """Return the method and target that the first line of invalid HTTP names, "" where it has none."""
    words = raw.lstrip(b"\r\n").partition(b"\n")[0].decode("latin-1").split()
    return HttpRequest(method=words[0] if words else "", target=words[1] if len(words) > 1 else "")


def _is_scheduled_events(path: tuple[str, ...]) -> bool:
    match path:
        case ("metadata", "scheduledevents") | ("metadata", "latest" | "{latest}", "scheduledevents"):
            return True
        case _:
            return False


@lru_cache(maxsize=4)  # handlers poll the same document again and again
def _received_document(body: bytes) -> Received | None:
    try:
        return decode_document(body)
    except InvalidDocument:
        return None
