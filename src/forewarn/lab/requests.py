"""Maintenance and faults requested in a lab; each function returns the events that follow."""

from __future__ import annotations

from dataclasses import dataclass

from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.event import Event
from forewarn.core.faults import FAULT_DEFINITIONS, FaultKind, parse_fault_kind
from forewarn.core.fleet import Vm
from forewarn.core.request import IMPACT_CAUSES, RequestedOperation, Rollout, RolloutImpact
from forewarn.errors import NotFound, Refused, Rejected
from forewarn.lab.arguments import DurationLike, duration_seconds
from forewarn.lab.service import TEST_ACTOR, LabService


def find_vm(service: LabService, name: str) -> Vm:
    known = service.store.vms(removed=True)
    wanted = name.strip().casefold()
    found = [vm for vm in known if vm.key == wanted or vm.key.endswith(f"/{wanted}")]
    if not found:
        raise NotFound(f"the lab has no VM {name!r}: it has {', '.join(vm.name for vm in known)}")
    if len(found) > 1:
        raise Refused(f"VM {name!r} is ambiguous: say {' or '.join(f'{vm.resource_group}/{vm.name}' for vm in found)}")
    return found[0]


@dataclass(frozen=True, slots=True)
class RequestedNotice:
    """How long ahead an event is announced; None: as long as its kind always is."""

    duration: DurationLike | None

    @property
    def seconds(self) -> float:
        return 0.0 if self.duration is None else duration_seconds(self.duration)

    @property
    def is_short(self) -> bool:
        """A test may rehearse with less than the platform would give."""
        return self.seconds > 0


async def request_for_vm(service: LabService, what: RequestedOperation, name: str, notice: RequestedNotice) -> Event:
    vm = find_vm(service, name)
    receipt = await service.control.requests.request_for_vms(
        what, [vm], who=TEST_ACTOR, notice_s=notice.seconds, short_notice=notice.is_short
    )
    await service.settle()
    return service.store.events(request_id=receipt.request.id)[0]


async def request_host_maintenance(
    service: LabService, impact: RolloutImpact, name: str, notice: RequestedNotice
) -> Event:
    """Maintenance of the VM's host, which hits every VM there."""
    vm = find_vm(service, name)
    events = await start_rollout(service, Rollout(impact=impact, hosts=(vm.host,)), notice)
    event = next((event for event in events if vm.name in event.vms), None)
    if event is None:
        raise Refused(
            f"the {IMPACT_CAUSES[impact]} of {vm.name} waits for another update domain on {vm.host}: "
            "advance the lab until that is over, and look into lab.events"
        )
    return event


async def start_rollout(service: LabService, rollout: Rollout, notice: RequestedNotice) -> list[Event]:
    """Its first update domains; the next ones are published when these are over."""
    request = await service.control.requests.start_rollout(
        rollout, who=TEST_ACTOR, notice_s=notice.seconds, short_notice=notice.is_short
    )
    await service.settle()
    return service.store.events(request_id=request.id)


async def degrade_host(service: LabService, host: str, notice: RequestedNotice) -> list[Event]:
    receipt = await service.control.requests.degrade_host(
        host, who=TEST_ACTOR, notice_s=notice.seconds, short_notice=notice.is_short
    )
    await service.settle()
    return service.store.events(request_id=receipt.request.id)


async def fail_host(service: LabService, host: str) -> list[Event]:
    receipt = await service.control.requests.fail_host(host, who=TEST_ACTOR)
    await service.settle()
    return service.store.events(request_id=receipt.request.id)


def parse_impact(name: str) -> RolloutImpact:
    try:
        return RolloutImpact(name)
    except ValueError:
        raise Rejected(f"there is no impact {name!r}: choose from {', '.join(RolloutImpact)}") from None


def fault_request(
    service: LabService,
    kind: str,
    vm: str | None,
    times: int | None,
    lasts: DurationLike | None,
    parameters: dict[str, DurationLike],
) -> FaultSpec:
    called = parse_fault_kind(kind)
    hit = None if vm is None else find_vm(service, vm)
    return FaultSpec(
        kind=called,
        target=FaultTarget() if hit is None else FaultTarget(name=hit.name, vm=hit),
        count=times,
        for_s=None if lasts is None else duration_seconds(lasts),
        parameters={_parameter_key(called, name): duration_seconds(value) for name, value in parameters.items()},
    )


def _parameter_key(kind: FaultKind, name: str) -> str:
    """Lengths of time are written with their unit, `notice="8s"`, so their names need none."""
    in_seconds = f"{name}_s"
    return in_seconds if in_seconds in FAULT_DEFINITIONS[kind].parameters else name
