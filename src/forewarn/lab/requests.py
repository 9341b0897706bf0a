"""Maintenance and faults requested in a lab, from the arguments of a test.

Functions that request something do everything due then, and return the events that were published. They raise what
the control plane raises: NotFound for unknown names, Rejected or Refused for what cannot be done.
"""

from __future__ import annotations

from dataclasses import dataclass

from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.cause import Cause
from forewarn.core.event import Event
from forewarn.core.faults import FAULT_DEFINITIONS, FaultKind, parse_fault_kind
from forewarn.core.fleet import Vm
from forewarn.core.request import IMPACT_CAUSES, RequestedOperation, Rollout, RolloutImpact
from forewarn.errors import NotFound, Refused, Rejected
from forewarn.lab.arguments import DurationLike, duration_seconds
from forewarn.lab.service import TEST_ACTOR, LabService


def find_vm(service: LabService, name: str) -> Vm:
    """Return the VM with this NAME, RESOURCE_GROUP/NAME or key, even one that was removed."""
    known = service.store.vms(removed=True)
    wanted = name.strip().casefold()
    found = [vm for vm in known if vm.key == wanted or vm.key.endswith(f"/{wanted}")]
    if not found:
        raise NotFound(f"the lab has no VM {name!r}: it has {', '.join(vm.name for vm in known)}")
    if len(found) > 1:
        raise Refused(f"VM {name!r} is ambiguous: give {' or '.join(f'{vm.resource_group}/{vm.name}' for vm in found)}")
    return found[0]


@dataclass(frozen=True, slots=True)
class RequestedNotice:
    """The notice that a test asked for; None and 0 mean the usual notice of the event's kind."""

    duration: DurationLike | None  # "15m", seconds or a timedelta; None: the usual notice

    @property
    def seconds(self) -> float:
        """The notice in seconds; 0 means the usual one. Raises Rejected for text that is not a duration."""
        return 0.0 if self.duration is None else duration_seconds(self.duration)

    @property
    def _is_short(self) -> bool:
        return self.seconds > 0


async def request_for_vm(service: LabService, what: RequestedOperation, name: str, notice: RequestedNotice) -> Event:
    """Request an operation on the VM `name`, and return its event, which may have started already."""
    vm = find_vm(service, name)
    receipt = await service.control.requests.request_for_vms(
        what, [vm], who=TEST_ACTOR, notice_s=notice.seconds, short_notice=notice._is_short
    )
    await service.settle()
    return service.store.events(request_id=receipt.request.id)[0]


async def request_host_maintenance(
    service: LabService, impact: RolloutImpact, name: str, notice: RequestedNotice
) -> Event:
    """Start a rollout over the host of VM `name`, which affects every VM there; return this VM's event.

    Refused if this rollout has published no event of this VM; the rollout continues all the same.
    """
    vm = find_vm(service, name)
    events = await start_rollout(service, Rollout(impact=impact, hosts=(vm.host,)), notice)
    event = next((event for event in events if event.scope_id == vm.scope_id and vm.name in event.vms), None)
    if event is None:
        raise _no_event_error(service, IMPACT_CAUSES[impact], vm)
    return event


def _no_event_error(service: LabService, cause: Cause, vm: Vm) -> Refused:
    for event in service.store.events(scope_id=vm.scope_id):
        if event.is_live and event.cause is cause and vm.name in event.vms:
            return Refused(
                f"the {cause} of {vm.name} is pending already: use event {event.id}, which an earlier request "
                "published, or advance the lab until it is over and request another"
            )
    return Refused(
        f"the {cause} of {vm.name} waits for another update domain on {vm.host}: "
        "advance the lab until that is over, then read lab.events"
    )


async def start_rollout(service: LabService, rollout: Rollout, notice: RequestedNotice) -> list[Event]:
    """Start a rollout, do everything due, and return the events published by then, oldest first."""
    request = await service.control.rollout_requests.start(
        rollout, who=TEST_ACTOR, notice_s=notice.seconds, short_notice=notice._is_short
    )
    await service.settle()
    return service.store.events(request_id=request.id)


async def degrade_host(service: LabService, host: str, notice: RequestedNotice) -> list[Event]:
    """Predict that a host fails after this notice; return a Redeploy event per VM on it or moving to it."""
    receipt = await service.control.requests.degrade_host(
        host, who=TEST_ACTOR, notice_s=notice.seconds, short_notice=notice._is_short
    )
    await service.settle()
    return service.store.events(request_id=receipt.request.id)


async def fail_host(service: LabService, host: str) -> list[Event]:
    """Make a host fail now; return the Redeploy events of its VMs and of those being redeployed to it."""
    receipt = await service.control.requests.fail_host(host, who=TEST_ACTOR)
    await service.settle()
    return service.store.events(request_id=receipt.request.id)


def parse_impact(name: str) -> RolloutImpact:
    """Return the rollout impact of this exact name: `update`, `migrate` or `reboot`; else Rejected."""
    try:
        return RolloutImpact(name)
    except ValueError:
        raise Rejected(f"impact {name!r} does not exist: choose from {', '.join(RolloutImpact)}") from None


def fault_request(
    service: LabService,
    kind: str,
    vm: str | None,
    times: int | None,
    lasts: DurationLike | None,
    parameters: dict[str, DurationLike],
) -> FaultSpec:
    """Describe the fault that a test asked for, without setting it; `vm` None means all VMs."""
    fault_kind = parse_fault_kind(kind)
    target = None if vm is None else find_vm(service, vm)
    return FaultSpec(
        kind=fault_kind,
        target=FaultTarget() if target is None else FaultTarget(name=target.name, vm=target),
        count=times,
        duration_s=None if lasts is None else duration_seconds(lasts),
        parameters={_parameter_key(fault_kind, name): duration_seconds(value) for name, value in parameters.items()},
    )


def _parameter_key(kind: FaultKind, name: str) -> str:
    """The API's name of a parameter: a test writes `notice="8s"`, the API `notice_s`."""
    in_seconds = f"{name}_s"
    return in_seconds if in_seconds in FAULT_DEFINITIONS[kind].parameters else name
