"""What can be asked for in a lab: each gives the events that follow, published or begun."""

from __future__ import annotations

from dataclasses import dataclass

from forewarn.control.faults import Target, Wish
from forewarn.core.event import Event
from forewarn.core.fault import FAULTS, FaultKind, kind_called
from forewarn.core.fleet import Vm
from forewarn.core.request import IMPACT_CAUSE, Ask, Impact, Rollout
from forewarn.errors import NotFound, Refused, Rejected
from forewarn.testing.lab_service import WHO, LabService
from forewarn.testing.lab_span import Span, seconds_of


def find(service: LabService, name: str) -> Vm:
    known = service.store.vms(removed=True)
    wanted = name.strip().casefold()
    found = [vm for vm in known if vm.key == wanted or vm.key.endswith(f"/{wanted}")]
    if not found:
        raise NotFound(f"the lab has no VM {name!r}: it has {', '.join(vm.name for vm in known)}")
    if len(found) > 1:
        raise Refused(f"VM {name!r} is ambiguous: say {' or '.join(f'{vm.resource_group}/{vm.name}' for vm in found)}")
    return found[0]


@dataclass(frozen=True, slots=True)
class Notice:
    """How long ahead an event is announced; None: as long as its kind always is."""

    span: Span | None

    @property
    def seconds(self) -> float:
        return 0.0 if self.span is None else seconds_of(self.span)

    @property
    def is_short(self) -> bool:
        """A test may rehearse with less than the platform would give."""
        return self.seconds > 0


async def ask(service: LabService, what: Ask, name: str, notice: Notice) -> Event:
    vm = find(service, name)
    receipt = await service.control.requests.ask_for_vms(
        what, [vm], who=WHO, notice_s=notice.seconds, short_notice=notice.is_short
    )
    await service.settle()
    return service.store.events(request_id=receipt.request.id)[0]


async def ask_platform(service: LabService, impact: Impact, name: str, notice: Notice) -> Event:
    """Maintenance of the VM's host, which hits every VM there."""
    vm = find(service, name)
    events = await roll_out(service, Rollout(impact=impact, hosts=(vm.host,)), notice)
    event = next((event for event in events if vm.name in event.vms), None)
    if event is None:
        raise Refused(
            f"the {IMPACT_CAUSE[impact]} of {vm.name} waits for another update domain on {vm.host}: "
            "advance the lab until that is over, and look into lab.events"
        )
    return event


async def roll_out(service: LabService, rollout: Rollout, notice: Notice) -> list[Event]:
    """Its first update domains; the next ones are published when these are over."""
    request = await service.control.requests.start_rollout(
        rollout, who=WHO, notice_s=notice.seconds, short_notice=notice.is_short
    )
    await service.settle()
    return service.store.events(request_id=request.id)


async def degrade(service: LabService, host: str, notice: Notice) -> list[Event]:
    receipt = await service.control.requests.degrade(
        host, who=WHO, notice_s=notice.seconds, short_notice=notice.is_short
    )
    await service.settle()
    return service.store.events(request_id=receipt.request.id)


async def fail(service: LabService, host: str) -> list[Event]:
    receipt = await service.control.requests.fail(host, who=WHO)
    await service.settle()
    return service.store.events(request_id=receipt.request.id)


def impact_called(name: str) -> Impact:
    try:
        return Impact(name)
    except ValueError:
        raise Rejected(f"there is no impact {name!r}: choose from {', '.join(Impact)}") from None


def wish(
    service: LabService, kind: str, vm: str | None, times: int | None, lasts: Span | None, parameters: dict[str, Span]
) -> Wish:
    called = kind_called(kind)
    hit = None if vm is None else find(service, vm)
    return Wish(
        kind=called,
        target=Target() if hit is None else Target(name=hit.name, vm=hit),
        count=times,
        for_s=None if lasts is None else seconds_of(lasts),
        parameters={_spelled(called, name): seconds_of(value) for name, value in parameters.items()},
    )


def _spelled(kind: FaultKind, name: str) -> str:
    """Lengths of time are written with their unit, `notice="8s"`, so their names need none."""
    in_seconds = f"{name}_s"
    return in_seconds if in_seconds in FAULTS[kind].parameters else name
