"""Plans rollouts: divides VMs into waves, and simulates with and without approvals (spec §13.6)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from forewarn.control.control_plane import ControlPlane
from forewarn.control.dry_run import MAX_SIMULATED_VMS, simulate_request
from forewarn.core.explain.rollout_plan import RolloutPlan, SimulatedRun, make_rollout_plan
from forewarn.core.fleet import Vm
from forewarn.core.request import MaintenanceRequest, Rollout
from forewarn.core.waves import divide_into_waves


async def plan_rollout(
    control: ControlPlane,
    rollout: Rollout,
    *,
    who: str,
    notice_s: float,
    short_notice: bool,
    has_handler: Callable[[Vm], bool] = lambda vm: True,
) -> RolloutPlan:
    """Return the plan of a rollout: waves, VMs, earliest and latest times.

    `who` is the caller's name. `notice_s` is in seconds of lab time; 0 means the minimum, or no notice with
    `short_notice`. Only with `short_notice` may it be below the minimum. `has_handler` says whether a VM polls for
    events. The earliest times assume that each event is approved when it is published, the latest that none is. Changes
    nothing, and performs no health check. Waits for an earlier dry run. A hold on rollouts is left out of the times,
    and named in the plan. Each of the two simulations ends after 10 seconds of real time, or when nothing more is due;
    later times are then missing. With over 2,000 VMs nothing is simulated: the latest times are those that the started
    rollout is expected to have, and the earliest ones are missing.
    """
    request = control.rollout_requests.plan(rollout, who=who, notice_s=notice_s, short_notice=short_notice)
    assert request.rollout is not None
    vms = control.rollouts.vms_of(request.rollout)
    without_checks = replace(rollout, checks=())  # nothing is asked: a plan shows what happens if all is well
    divided = divide_into_waves(request.rollout, vms)

    async def start(copy: ControlPlane) -> MaintenanceRequest:
        return await copy.rollout_requests.start(without_checks, who=who, notice_s=notice_s, short_notice=short_notice)

    async def run(*, approves: bool) -> SimulatedRun | None:
        if len(vms) > MAX_SIMULATED_VMS:
            return None
        return (await simulate_request(control, start, vms, approves=approves)).run

    return make_rollout_plan(
        request.rollout,
        divided,
        now=request.requested_at,
        notice_s=request.notice_s,
        earliest=await run(approves=True),
        latest=await run(approves=False),
        forecast=control.rollouts.forecast_of(request, request.rollout, ignores_hold=True)
        if len(vms) > MAX_SIMULATED_VMS
        else None,
        without_handler={vm.key for wave in divided for vm in wave if not has_handler(vm)},
        hold=control.rollouts.hold.reason if control.rollouts.hold is not None else "",
    )
