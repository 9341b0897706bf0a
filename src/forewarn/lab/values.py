"""An event of a lab, as a test holds it. It reads the lab anew whenever it is asked, also when the lab is closed."""

from __future__ import annotations

from datetime import datetime, timedelta

from forewarn.core.event import Ending, Event, Status
from forewarn.core.story import kind_of
from forewarn.testing.lab_service import LabService
from forewarn.testing.lab_span import instant_of
from forewarn.testing.lab_story import Reader, story_of, told, told_in_a_line


class LabEvent:
    """Maintenance of some VMs. Its `repr` is its story, in a line; `print(event)` tells it in full."""

    def __init__(self, lab: Reader, event_id: str) -> None:
        self._lab = lab
        self.id = event_id

    @property
    def kind(self) -> str:
        """`Freeze`, `Reboot`, `Redeploy`, `Preempt` or `Terminate`; what is done, where VMs are told nothing."""
        return kind_of(self._event)

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
        return instant_of(self._event.not_before)

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
            seen = sorted(service.store.sightings(event_id=self.id), key=lambda sighting: sighting.at)
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
        return None if at is None else instant_of(at)

    @property
    def over(self) -> bool:
        """However it ended."""
        return self._event.status is Status.OVER

    @property
    def over_at(self) -> datetime | None:
        at = self._event.over_at
        return None if at is None else instant_of(at)

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
        return self._lab.read(lambda service: told(service, story_of(service, _event(service, self.id))))

    def __repr__(self) -> str:
        line = self._lab.read(lambda service: told_in_a_line(service, story_of(service, _event(service, self.id))))
        return f"<{line}>"

    @property
    def _event(self) -> Event:
        return self._lab.read(lambda service: _event(service, self.id))


def _event(service: LabService, event_id: str) -> Event:
    event = service.store.event(event_id)
    assert event is not None
    return event
