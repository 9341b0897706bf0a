"""The events, VMs and faults of a lab, as a test holds them.

Each property reads the lab anew, also after the lab was closed.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from forewarn.core.cause import Verb
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.projection import document_for
from forewarn.explain.phrases import event_kind_text
from forewarn.lab.arguments import utc_datetime
from forewarn.lab.explanation import LabReader, explanation_of, format_explanation, format_in_one_line
from forewarn.lab.service import LabService
from forewarn.protocol.codec import encode_document
from forewarn.protocol.versions import NEWEST_VERSION


class LabEvent:
    """Maintenance of some VMs. Its `repr` is its story, in a line; `print(event)` tells it in full."""

    def __init__(self, lab: LabReader, event_id: str) -> None:
        self._lab = lab
        self.id = event_id

    @property
    def kind(self) -> str:
        """`Freeze`, `Reboot`, `Redeploy`, `Preempt` or `Terminate`; what is done, where VMs are told nothing."""
        return event_kind_text(self._event)

    @property
    def vms(self) -> tuple[str, ...]:
        return self._event.vms

    @property
    def status(self) -> str:
        """`scheduled`, `started` or `over`."""
        return str(self._event.status)

    @property
    def listed(self) -> bool:
        """Whether VMs were told; else it was carried out at once."""
        return self._event.listed

    @property
    def not_before(self) -> datetime:
        return utc_datetime(self._event.not_before)

    @property
    def notice(self) -> timedelta:
        """What was promised."""
        event = self._event
        return timedelta(seconds=event.not_before - event.published_at)

    @property
    def notice_got(self) -> timedelta | None:
        """From publication to start; None: it has not started."""
        event = self._event
        return None if event.started_at is None else timedelta(seconds=event.started_at - event.published_at)

    @property
    def seen_by(self) -> tuple[str, ...]:
        """The VMs that were given it, the first one first."""

        def look(service: LabService) -> tuple[str, ...]:
            seen = sorted(service.store.deliveries(event_id=self.id), key=lambda sighting: sighting.at)
            vms = (service.store.vm(key) for key in dict.fromkeys(sighting.vm for sighting in seen))
            return tuple(vm.name for vm in vms if vm is not None)

        return self._lab.read(look)

    @property
    def approved(self) -> bool:
        return self._event.approved_at is not None

    @property
    def approved_by(self) -> str:
        """The VM, or whoever else; "": nobody."""
        return self._event.approved_by

    @property
    def started(self) -> bool:
        """Whether it ever started; it may be over by now."""
        return self._event.started_at is not None

    @property
    def started_at(self) -> datetime | None:
        at = self._event.started_at
        return None if at is None else utc_datetime(at)

    @property
    def over(self) -> bool:
        """However it ended."""
        return self._event.status is EventState.OVER

    @property
    def over_at(self) -> datetime | None:
        at = self._event.over_at
        return None if at is None else utc_datetime(at)

    @property
    def finished(self) -> bool:
        return self._event.ending is Ending.FINISHED

    @property
    def failed(self) -> bool:
        return self._event.ending is Ending.FAILED

    @property
    def withdrawn(self) -> bool:
        return self._event.ending is Ending.WITHDRAWN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabEvent) and (other._lab, other.id) == (self._lab, self.id)

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self._lab.read(
            lambda service: format_explanation(service, explanation_of(service, _find_event(service, self.id)))
        )

    def __repr__(self) -> str:
        line = self._lab.read(
            lambda service: format_in_one_line(service, explanation_of(service, _find_event(service, self.id)))
        )
        return f"<{line}>"

    @property
    def _event(self) -> Event:
        return self._lab.read(lambda service: _find_event(service, self.id))


def _find_event(service: LabService, event_id: str) -> Event:
    event = service.store.event(event_id)
    assert event is not None
    return event


class LabVm:
    """A VM of the lab, and where it asks for its events."""

    def __init__(self, lab: LabReader, key: str, name: str, endpoint: str) -> None:
        self._lab = lab
        self._key = key
        self.name = name
        self.endpoint = endpoint  # http://127.0.0.1:PORT: whoever calls there is this VM

    @property
    def url(self) -> str:
        """The whole URL, but for the api-version."""
        return f"{self.endpoint}/metadata/scheduledevents"

    @property
    def environment(self) -> dict[str, str]:
        """For the handler's process, where it is not told the endpoint otherwise."""
        return {"FOREWARN_ENDPOINT": self.endpoint, "SCHEDULEDEVENTSIP": self.endpoint.removeprefix("http://")}

    @property
    def power(self) -> str:
        """`running`, `stopped`, `deallocated` or `deleted`."""
        vm = self._vm
        return "deleted" if vm.removed_at is not None else str(vm.power)

    @property
    def host(self) -> str:
        return self._vm.host

    @property
    def reboots(self) -> int:
        return self.performed.count(Verb.REBOOT)

    @property
    def performed(self) -> tuple[str, ...]:
        """What was done to it, in order: `("freeze", "reboot")`."""

        def look(service: LabService) -> tuple[str, ...]:
            acts = (act for event in service.store.events() for act in event.acts if act.vm == self._key)
            done = [(act.outcome.at, str(act.verb)) for act in acts if act.outcome is not None and act.outcome.ok]
            return tuple(verb for _, verb in sorted(done))

        return self._lab.read(look)

    @property
    def polls(self) -> int:
        """How many sound requests it has made."""
        return self._lab.read(lambda service: sum(p.count for p in service.store.last_polls() if p.vm == self._key))

    def document(self, version: str = NEWEST_VERSION) -> dict[str, Any]:
        """What it would be given now; nobody has asked by this."""

        def look(service: LabService) -> bytes:
            scope = service.store.scope(_find_vm(service, self._key).scope_id)
            assert scope is not None
            return encode_document(document_for(scope), version)

        document: dict[str, Any] = json.loads(self._lab.read(look))
        return document

    def __str__(self) -> str:
        return self._lab.read(
            lambda service: format_explanation(service, explanation_of(service, _find_vm(service, self._key)))
        )

    def __repr__(self) -> str:
        return f"<VM {self.name}, {self.power}, at {self.endpoint}>"

    @property
    def _vm(self) -> Vm:
        return self._lab.read(lambda service: _find_vm(service, self._key))


class LabFault:
    """Something that goes wrong, on purpose."""

    def __init__(self, lab: LabReader, fault_id: str, kind: str) -> None:
        self._lab = lab
        self.id = fault_id
        self.kind = kind

    @property
    def touched(self) -> int:
        """How many requests or events it has spoiled."""
        return self._lab.read(
            lambda service: service.requests_touched[self.id] + len(service.events_touched_by(self.id))
        )

    def __repr__(self) -> str:
        return f"<fault {self.kind}, touched {self.touched}>"


def _find_vm(service: LabService, key: str) -> Vm:
    vm = service.store.vm(key)
    assert vm is not None
    return vm
