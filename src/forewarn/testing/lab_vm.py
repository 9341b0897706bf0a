"""VMs and faults of a lab, as a test holds them. Each reads the lab anew whenever it is asked, also when the lab is
closed.
"""

from __future__ import annotations

import json
from typing import Any

from forewarn.core.cause import Verb
from forewarn.core.fleet import Vm
from forewarn.core.projection import document_for
from forewarn.protocol.codec import encode
from forewarn.protocol.versions import NEWEST
from forewarn.testing.lab_service import LabService
from forewarn.testing.lab_story import Reader, story_of, told


class LabVm:
    """A VM of the lab, and where it asks for its events."""

    def __init__(self, lab: Reader, key: str, name: str, endpoint: str) -> None:
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
        return self._lab.read(lambda service: sum(p.count for p in service.store.polls() if p.vm == self._key))

    def document(self, version: str = NEWEST) -> dict[str, Any]:
        """What it would be given now; nobody has asked by this."""

        def look(service: LabService) -> bytes:
            scope = service.store.scope(_vm(service, self._key).scope_id)
            assert scope is not None
            return encode(document_for(scope), version)

        document: dict[str, Any] = json.loads(self._lab.read(look))
        return document

    def __str__(self) -> str:
        return self._lab.read(lambda service: told(service, story_of(service, _vm(service, self._key))))

    def __repr__(self) -> str:
        return f"<VM {self.name}, {self.power}, at {self.endpoint}>"

    @property
    def _vm(self) -> Vm:
        return self._lab.read(lambda service: _vm(service, self._key))


class LabFault:
    """Something that goes wrong, on purpose."""

    def __init__(self, lab: Reader, fault_id: str, kind: str) -> None:
        self._lab = lab
        self.id = fault_id
        self.kind = kind

    @property
    def touched(self) -> int:
        """How many requests or events it has spoiled."""
        return self._lab.read(lambda service: service.spoiled[self.id] + len(service.touched_by(self.id)))

    def __repr__(self) -> str:
        return f"<fault {self.kind}, touched {self.touched}>"


def _vm(service: LabService, key: str) -> Vm:
    vm = service.store.vm(key)
    assert vm is not None
    return vm
