"""Each act takes effect once, and leaves its VM neither doubled nor paused, if any one call is disturbed.

The service is killed before and after every call of the driver and every write of the journal; a host does not answer a
call, or its answer is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.cause import Verb
from forewarn.machines.driver import MachineState
from tests.support.disturbed_calls import Disturbance, DisturbedCalls
from tests.support.fake_machines import FakeBehaviour
from tests.support.machine_acts import MachineSite, machine_act

IGNORES_ACPI: dict[str, Any] = {"shutdown_s": math.inf}
CASES: dict[str, tuple[Verb, Mapping[str, Any], Mapping[str, Any], dict[str, MachineState]]] = {
    # name: verb, fields of the act, behaviour of the hosts, where the VM is afterwards
    "freeze": (Verb.FREEZE, {}, {}, {"host-1": MachineState.RUNNING}),
    "reboot": (Verb.REBOOT, {}, {}, {"host-1": MachineState.RUNNING}),
    "reset": (Verb.REBOOT, {}, IGNORES_ACPI, {"host-1": MachineState.RUNNING}),
    "migrate": (Verb.MIGRATE, {}, {}, {"host-2": MachineState.RUNNING}),
    "redeploy": (Verb.REDEPLOY, {}, {}, {"host-2": MachineState.RUNNING}),
    "redeploy by force": (Verb.REDEPLOY, {}, IGNORES_ACPI, {"host-2": MachineState.RUNNING}),
    "redeploy abruptly": (Verb.REDEPLOY, {"abrupt": True}, {}, {"host-2": MachineState.RUNNING}),
    "evict": (Verb.EVICT, {"keeps_vm": False}, {}, {}),
    "delete": (Verb.DELETE, {}, IGNORES_ACPI, {}),
    "power-off": (Verb.POWER_OFF, {}, {}, {"host-1": MachineState.OFF}),
    "deallocate": (Verb.DEALLOCATE, {}, {}, {}),
    "start": (Verb.START, {}, {}, {"host-1": MachineState.RUNNING}),
    "reimage": (Verb.REIMAGE, {}, {}, {"host-1": MachineState.RUNNING}),
}


def disturbances(calls: int, *kinds: Disturbance) -> Iterator[tuple[int, Disturbance]]:
    """Each call with each kind. Nothing durable happens between two calls: killed before one is after the other."""
    yield 0, Disturbance.KILL_BEFORE
    yield from product(range(calls), kinds)


def perform_disturbed(
    site: MachineSite, name: str, number: int = -1, kind: Disturbance = Disturbance.KILL_AFTER
) -> int:
    """Perform the case on a new VM, with one call disturbed: it takes effect once. Return the number of calls."""
    verb, fields, behaviour, states = CASES[name]
    site.hosts.behaviour = FakeBehaviour(**behaviour)
    vm, calls = f"vm-{number}-{kind}", DisturbedCalls(number=number, kind=kind)
    site.hosts.add("host-1", vm, MachineState.OFF if verb is Verb.START else MachineState.RUNNING)
    act = machine_act(verb, vm=vm, **fields)
    done = site.perform_until_done(act, calls=calls)
    noticed = [entry for entry in site.hosts.log if entry.vm == vm]
    assert (done.ok, site.effects(act)) == (True, 1), f"{kind} call {number}: {done.note}, {noticed}"
    assert site.hosts.states(vm) == states, f"{kind} call {number}"
    assert sum(entry.what == "paused" for entry in noticed) <= 1, f"{kind} call {number}"
    return calls.calls


@pytest.mark.parametrize("name", CASES)
def test_an_act_takes_effect_once_whichever_call_is_disturbed(tmp_path: Path, name: str) -> None:
    site = MachineSite(tmp_path)
    calls = perform_disturbed(site, name)
    kinds = (Disturbance.KILL_AFTER, Disturbance.UNREACHABLE, Disturbance.LOST_ANSWER)
    for number, kind in disturbances(calls, *kinds):
        perform_disturbed(site, name, number, kind)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("evict", "delete", "deallocate")])
def test_an_act_takes_effect_once_although_its_journal_is_lost_at_any_call(tmp_path: Path, name: str) -> None:
    site = MachineSite(tmp_path)
    calls = perform_disturbed(site, name)
    site.loses_journal = True
    for number, kind in disturbances(calls, Disturbance.KILL_AFTER):
        perform_disturbed(site, name, number, kind)


FAILING: dict[str, Mapping[str, Any]] = {
    "does not converge": {"migration_s": math.inf},
    "destination is full": {"refused": {"prepare_to_receive": "host-2 is full"}},
    "source refuses to send": {"refused": {"send": "the VM has a device that cannot migrate"}},
}


@pytest.mark.parametrize("name", FAILING)
def test_a_vm_whose_migration_fails_goes_on_on_its_host_whichever_call_is_disturbed(tmp_path: Path, name: str) -> None:
    site = MachineSite(tmp_path)

    def perform_failing(number: int = -1, kind: Disturbance = Disturbance.KILL_AFTER) -> int:
        vm, calls = f"vm-{number}-{kind}", DisturbedCalls(number=number, kind=kind)
        site.hosts.behaviour = FakeBehaviour(**FAILING[name])
        site.hosts.add("host-1", vm)
        done = site.perform_until_done(machine_act(Verb.MIGRATE, vm=vm), calls=calls)
        assert (done.ok, bool(done.note)) == (False, True)
        assert site.hosts.states(vm) == {"host-1": MachineState.RUNNING}, f"{kind} call {number}: {done.note}"
        noticed = [entry for entry in site.hosts.log if (entry.vm, entry.host) == (vm, "host-1")]
        assert noticed == [], f"{kind} call {number}"
        return calls.calls

    for number, kind in disturbances(perform_failing(), Disturbance.KILL_AFTER, Disturbance.LOST_ANSWER):
        perform_failing(number, kind)


@pytest.mark.parametrize("loses_journal", [False, True])
def test_a_vm_that_its_destination_cannot_boot_runs_on_its_source_whichever_call_is_disturbed(
    tmp_path: Path, loses_journal: bool
) -> None:
    site = MachineSite(tmp_path)
    site.loses_journal = loses_journal

    def perform_returning(number: int = -1, kind: Disturbance = Disturbance.KILL_AFTER) -> int:
        vm, calls = f"vm-{number}-{kind}", DisturbedCalls(number=number, kind=kind)
        site.hosts.behaviour = FakeBehaviour(refused={"power_on on host-2": "host-2 has no disk for it"})
        site.hosts.add("host-1", vm)
        done = site.perform_until_done(machine_act(Verb.REDEPLOY, vm=vm), calls=calls)
        assert (done.ok, bool(done.note)) == (False, True)
        assert site.hosts.states(vm) == {"host-1": MachineState.RUNNING}, f"{kind} call {number}: {done.note}"
        return calls.calls

    kinds = (Disturbance.KILL_AFTER,) if loses_journal else (Disturbance.KILL_AFTER, Disturbance.LOST_ANSWER)
    for number, kind in disturbances(perform_returning(), *kinds):
        perform_returning(number, kind)
