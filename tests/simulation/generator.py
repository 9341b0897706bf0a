"""Makes a schedule from a seed: a small random fleet, settings, and some dozens of random operations."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from forewarn.core.cause import Verb
from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultKind
from forewarn.core.fleet import AutoApproval, EvictionPolicy, Host, HostHealth, Orchestration, Priority, Vm
from forewarn.core.request import RequestedOperation, RolloutImpact, RolloutState
from forewarn.machines.simulated import BehaviourRule, DurationRule, FailRule, SlowRule, UnreachableRule
from tests.simulation.schedule import (
    AdvanceClock,
    ApproveAsOperator,
    ApproveAsVm,
    AskForVms,
    BreakHost,
    ChangeFleet,
    ChangeHypervisor,
    ChangeRollout,
    ClearFaults,
    CrashAgent,
    CrashService,
    FailWrites,
    Operation,
    PerformMaintenance,
    Poll,
    RepairHost,
    RollOut,
    Schedule,
    SetFault,
    SimulationSettings,
    StartAgent,
    Wait,
    Withdraw,
)
from tests.support.world import a_host, a_vm

MAX_OPERATIONS = 40
_PICKS = 20
_NOTICES = ((0.0, False), (0.0, False), (0.0, True), (5.0, True), (60.0, True), (3600.0, False))
_ASKS = (
    RequestedOperation.RESTART,
    RequestedOperation.REDEPLOY,
    RequestedOperation.REDEPLOY,
    RequestedOperation.EVICT,
    RequestedOperation.DELETE,
    RequestedOperation.SCALE_IN,
    RequestedOperation.POWER_OFF,
    RequestedOperation.START,
    RequestedOperation.DEALLOCATE,
    RequestedOperation.REAPPLY,
    RequestedOperation.REIMAGE,
)
_VM_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"terminate_notice_min": 5},
    {"priority": Priority.SPOT},
    {"priority": Priority.SPOT, "eviction_policy": EvictionPolicy.DELETE},
    {"auto_approve": AutoApproval(restart=True, redeploy=True)},
)
_FAULTS = (
    *(
        kind
        for kind in FaultKind
        if FAULT_DEFINITIONS[kind].category is not FaultCategory.TRANSPORT
        and kind is not FaultKind.SEVERAL_UPDATE_DOMAINS  # it breaks a rule on purpose, and seeds keep their schedules
    ),
    FaultKind.EMPTY_BODY,
    FaultKind.INTERNAL_ERROR,
    FaultKind.RESET,
    FaultKind.THROTTLED,
    FaultKind.GONE,
)


def schedule_for_seed(seed: int) -> Schedule:
    """Return the schedule of a seed; always the same one."""
    chance = Random(seed)
    hosts = tuple(a_host(f"h{number}") for number in range(1, chance.randint(2, 4) + 1))
    vms = _random_vms(chance, hosts, seed)
    settings = SimulationSettings(
        sqlite=chance.random() < 0.05,
        always_enabled=chance.random() < 0.75,
        settle_s=chance.choice((0.0, 0.0, 45.0)),
        max_user_operations=chance.choice((1, 2, 100)),
        agents_approve=chance.random() < 0.7,
        steps_fail=chance.random() < 0.2,
        checks_know=chance.random() < 0.8,
    )
    operations = tuple(_random_operation(chance) for _ in range(chance.randint(3, MAX_OPERATIONS)))
    return Schedule(seed=seed, settings=settings, hosts=hosts, vms=vms, operations=operations)


_ORCHESTRATIONS: tuple[dict[str, Any], ...] = (
    {"placement_group": "pg"},
    {"orchestration": Orchestration.FLEXIBLE},
    {"orchestration": Orchestration.FLEXIBLE, "narrow_delivery": True},
)


def _random_vms(chance: Random, hosts: tuple[Host, ...], seed: int) -> tuple[Vm, ...]:
    orchestrations = Random(f"orchestrations {seed}")  # its own, so that seeds keep their operations
    vms: list[Vm] = []
    for letter in "abc"[: chance.randint(1, 3)]:
        group: dict[str, Any] = chance.choice(
            (
                {"availability_set": f"set-{letter}"},
                {"availability_set": f"set-{letter}"},
                {"scale_set": letter, **orchestrations.choice(_ORCHESTRATIONS)},
                {"cloud_service": f"service-{letter}"},
                {},
            )
        )
        settings, domains = (
            chance.choice(_VM_SETTINGS[:3] if "scale_set" in group else _VM_SETTINGS),
            chance.randint(2, 3),
        )
        for number in range(chance.randint(2, 4) if group else 1):
            facts = {**group, **settings, "host": chance.choice(hosts).name, "address": f"10.0.0.{len(vms) + 1}"}
            vms.append(a_vm(f"{letter}_{number}", update_domain=number % domains if group else 0, **facts))
    return tuple(vms)


def _pick(chance: Random) -> int:
    return chance.randrange(_PICKS)


def _picks(chance: Random, most: int) -> tuple[int, ...]:
    return tuple(_pick(chance) for _ in range(chance.randint(1, most)))


def _notice(chance: Random) -> dict[str, Any]:
    notice_s, short = chance.choice(_NOTICES)
    return {"notice_s": notice_s, "short_notice": short}


def _ask(chance: Random) -> Operation:
    return AskForVms(
        operation=chance.choice(_ASKS), vms=_picks(chance, 3), **_notice(chance), together=chance.random() < 0.2
    )


def _break_host(chance: Random) -> Operation:
    health = chance.choice((HostHealth.FAILED, HostHealth.FAILED, HostHealth.DEGRADED))
    return BreakHost(host=_pick(chance), health=health, **_notice(chance), together=chance.random() < 0.2)


def _roll_out(chance: Random) -> Operation:
    hosts = _picks(chance, 3) if chance.random() < 0.6 else ()
    return RollOut(
        impact=chance.choice(tuple(RolloutImpact)),
        hosts=hosts,
        vm=_pick(chance),
        max_failures=chance.randint(0, 2),
        **_notice(chance),
        together=chance.random() < 0.2,
    )


def _change_rollout(chance: Random) -> Operation:
    states = (RolloutState.PAUSED, RolloutState.RUNNING, RolloutState.ABORTED)
    return ChangeRollout(rollout=_pick(chance), state=chance.choice(states))


def _change_fleet(chance: Random) -> Operation:
    count = chance.choice((0, 1, 1, 2))
    added = tuple((_pick(chance), chance.randint(0, 3), _pick(chance)) for _ in range(count))
    removed = _picks(chance, 2) if not added or chance.random() < 0.3 else ()
    return ChangeFleet(
        added=added,
        removed=removed,
        added_host=chance.random() < 0.3,
        removed_host=_pick(chance) if chance.random() < 0.2 else None,
        together=chance.random() < 0.2,
    )


def _set_fault(chance: Random) -> Operation:
    kind = chance.choice(_FAULTS)
    has_duration = FAULT_DEFINITIONS[kind].category is not FaultCategory.AT_ONCE
    return SetFault(
        kind=kind,
        vm=_pick(chance) if chance.random() < 0.8 else None,
        count=chance.choice((None, 1, 2)) if has_duration else None,
        duration_s=chance.choice((None, 30.0, 300.0)) if has_duration else None,
    )


def _change_hypervisor(chance: Random) -> Operation:
    pattern = chance.choice(("*", "a_*", "*_0"))
    rules: tuple[BehaviourRule, ...] = (
        FailRule(vm=pattern, verb=chance.choice((None, *Verb))),
        UnreachableRule(vm=pattern, times=chance.randint(1, 6)),
        SlowRule(factor=chance.choice((0.0, 3.0, 50.0))),
        DurationRule(seconds=chance.choice((0.0, 1.0, 400.0))),
    )
    return ChangeHypervisor(rules=tuple(chance.sample(rules, chance.randint(0, 2))))


def _crash_service(chance: Random) -> Operation:
    return CrashService(
        points=chance.choice((0, 1, 2, 3, 4, 5, 6, 8, 10, 14, 20)),
        down_s=chance.choice((0.1, 1.0, 30.0, 700.0)),
        times=chance.choice((1, 1, 1, 2, 3)),
    )


def _crash_agent(chance: Random) -> Operation:
    return CrashAgent(agent=_pick(chance), points=chance.randint(0, 25), down_s=chance.choice((0.1, 1.0, 60.0)))


# How often each kind of operation comes, in parts of the sum.
_WEIGHTS: dict[Callable[[Random], Operation], int] = {
    _ask: 16,
    _break_host: 6,
    lambda chance: RepairHost(host=_pick(chance)): 3,
    _roll_out: 7,
    _change_rollout: 2,
    lambda chance: ApproveAsOperator(event=_pick(chance)): 3,
    lambda chance: ApproveAsVm(event=_pick(chance), all_of_scope=chance.random() < 0.5): 8,
    lambda chance: PerformMaintenance(vm=_pick(chance)): 2,
    lambda chance: Withdraw(event=_pick(chance), together=chance.random() < 0.5): 4,
    lambda chance: Poll(vm=_pick(chance), together=chance.random() < 0.3): 4,
    _change_fleet: 4,
    _set_fault: 3,
    lambda chance: ClearFaults(): 1,
    _change_hypervisor: 4,
    lambda chance: Wait(seconds=chance.choice((0.1, 1.0, 5.0, 31.0, 130.0))): 10,
    lambda chance: AdvanceClock(seconds=chance.choice((1.0, 9.0, 31.0, 301.0, 601.0, 901.0, 3600.0, 90000.0))): 12,
    _crash_service: 9,
    lambda chance: FailWrites(after=chance.randint(0, 8)): 2,
    lambda chance: StartAgent(vm=_pick(chance)): 3,
    _crash_agent: 4,
}


def _random_operation(chance: Random) -> Operation:
    [make] = chance.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()))
    return make(chance)
