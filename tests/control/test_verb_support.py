"""Maintenance that the hypervisor cannot perform is refused when it is requested, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from forewarn.control.control_plane import ControlPlane
from forewarn.control.dry_run import dry_run_request
from forewarn.core.cause import CAUSE_RULES, Verb
from forewarn.core.event import Ending
from forewarn.core.fleet import HostHealth, Priority
from forewarn.core.planning import OPERATION_CAUSES
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutImpact
from forewarn.errors import Refused, full_message
from forewarn.machines.interface import VerbSupport
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor
from tests.support.reboot_only_hypervisor import RebootOnlyHypervisor
from tests.support.world import World, a_host, a_vm

HOST_OPERATIONS = (RequestedOperation.DEGRADE, RequestedOperation.FAIL)


@pytest.fixture
def world() -> Iterator[World]:
    vms = [a_vm("web", priority=Priority.SPOT), a_vm("db", host="h2")]
    world = World(vms=vms, hosts=[a_host("h1"), a_host("h2")], hypervisor=RebootOnlyHypervisor())
    yield world
    world.close()


def refusal_of(world: World, request: Callable[[], object]) -> str:
    """The message of a refused request, which has changed nothing."""
    before = world.store.last_seq()
    with pytest.raises(Refused) as caught:
        request()
    assert world.store.last_seq() == before
    assert world.store.requests() == []
    return full_message(caught.value)


@pytest.mark.parametrize("operation", [o for o in OPERATION_CAUSES if o not in HOST_OPERATIONS])
def test_an_operation_whose_verb_is_missing_is_refused_and_the_setting_is_named(
    world: World, operation: RequestedOperation
) -> None:
    verb = CAUSE_RULES[OPERATION_CAUSES[operation]].verb
    if verb is Verb.REBOOT:
        assert world.ask(operation, "web")
        return
    message = refusal_of(world, lambda: world.ask(operation, "web"))
    assert message.startswith("the hypervisor of this service cannot ")
    assert message.endswith(f": add [commands.{verb}] to the settings of the service")


@pytest.mark.parametrize(
    ("impact", "verb"),
    [(RolloutImpact.UPDATE, "freeze"), (RolloutImpact.MIGRATE, "migrate"), (RolloutImpact.REBOOT, "")],
)
def test_a_rollout_whose_verb_is_missing_is_refused(world: World, impact: RolloutImpact, verb: str) -> None:
    rollout = Rollout(impact=impact, hosts=("h1",))

    def start() -> object:
        return world.do(world.control.rollout_requests.start(rollout, who="op"))

    if not verb:
        assert start()
        return
    assert f"cannot {verb} VMs: add [commands.{verb}] to" in refusal_of(world, start)


def test_a_predicted_failure_needs_redeploys(world: World) -> None:
    message = refusal_of(world, lambda: world.do(world.control.requests.degrade_host("h1", who="op", notice_s=0)))
    assert "cannot redeploy VMs: add [commands.redeploy] to" in message
    assert all(host.health is HostHealth.HEALTHY for host in world.store.hosts())


def test_the_failure_of_a_host_is_recorded_although_its_vms_cannot_be_redeployed(world: World) -> None:
    receipt = world.do(world.control.requests.fail_host("h1", who="op"))
    world.settle()
    assert world.control.placement.failed_hosts() == {"h1"}
    (event,) = world.store.events(request_id=receipt.request.id)
    assert (event.vms, event.ending) == (("web",), Ending.FAILED)
    assert [act.outcome.note for act in event.acts if act.outcome] == ["no command is set"]


def test_a_preview_of_an_impossible_operation_is_refused_too(world: World) -> None:
    web = world.vm("web")

    async def redeploy(copy: ControlPlane) -> MaintenanceRequest:
        receipt = await copy.requests.request_for_vms(RequestedOperation.REDEPLOY, [web], who="ann")
        return receipt.request

    assert "cannot redeploy VMs" in refusal_of(world, lambda: world.do(dry_run_request(world.control, redeploy, [web])))


def test_a_hypervisor_that_says_nothing_supports_every_verb() -> None:
    hypervisor = SimulatedHypervisor(EffectLedger(None))
    support = VerbSupport.of(hypervisor)
    for verb in Verb:
        support.require(verb)


def test_a_missing_verb_that_no_setting_adds_suggests_another_hypervisor() -> None:
    with pytest.raises(Refused) as caught:
        VerbSupport(verbs=frozenset()).require(Verb.POWER_OFF)
    assert full_message(caught.value) == (
        "the hypervisor of this service cannot power VMs off: choose another hypervisor"
    )
