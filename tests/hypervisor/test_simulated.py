"""The simulated hypervisor: acts take lab time (spec §12), and rules make it misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Unavailable
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import (
    BehaviourRule,
    DurationRule,
    FailRule,
    FalseSuccessRule,
    SimulatedBehaviour,
    SimulatedHypervisor,
    SlowRule,
    UnreachableRule,
)

NOW = 1_700_000_000.0


def act(verb: Verb = Verb.REBOOT, *, name: str = "web-1", event: str = "E1", duration_s: int = -1) -> Act:
    return Act(
        id=f"{event}:{name}",
        vm=f"s/g/{name}",
        name=name,
        verb=verb,
        event_id=event,
        from_host="host-1",
        to_host="host-2" if verb in (Verb.REDEPLOY, Verb.MIGRATE) else "",
        duration_s=duration_s,
    )


@pytest.fixture
def ledger() -> Iterator[EffectLedger]:
    ledger = EffectLedger(None)
    yield ledger
    ledger.close()


def perform(simulated: SimulatedHypervisor, act: Act, now: float = NOW) -> ActDone | ActUnderWay:
    return asyncio.run(simulated.perform(act, now))


@pytest.mark.parametrize(
    ("verb", "seconds"),
    [
        (Verb.REBOOT, 30), (Verb.REDEPLOY, 120), (Verb.EVICT, 10), (Verb.DELETE, 10), (Verb.POWER_OFF, 15),
        (Verb.START, 20), (Verb.DEALLOCATE, 15), (Verb.REAPPLY, 5), (Verb.REIMAGE, 60), (Verb.FREEZE, 9),
        (Verb.MIGRATE, 5),
    ],
)  # fmt: skip
def test_an_act_of_unknown_duration_takes_the_usual_time_of_its_verb(
    ledger: EffectLedger, verb: Verb, seconds: int
) -> None:
    """Spec §6.4: duration -1 is unknown."""
    assert perform(SimulatedHypervisor(ledger), act(verb)) == ActUnderWay(at=NOW + seconds)


def test_an_act_that_names_its_duration_takes_that_long(ledger: EffectLedger) -> None:
    """Spec §6.4: a host update freezes for 9 seconds."""
    simulated, freeze = SimulatedHypervisor(ledger), act(Verb.FREEZE, duration_s=9)

    assert perform(simulated, freeze) == ActUnderWay(at=NOW + 9)
    assert perform(simulated, freeze, NOW + 8.999) == ActUnderWay(at=NOW + 9)
    assert perform(simulated, freeze, NOW + 9) == ActDone(ok=True, note="freeze took 9 s")


def test_an_act_without_impact_is_done_at_once(ledger: EffectLedger) -> None:
    """Spec §4.2: duration 0 is no impact."""
    assert perform(SimulatedHypervisor(ledger), act(duration_s=0)) == ActDone(ok=True, note="reboot took 0 s")
    assert [(e.begun_at, e.ends_at, e.ended) for e in ledger.effects()] == [(NOW, NOW, True)]


def test_an_effect_is_recorded_when_the_act_begins_and_ends_once(ledger: EffectLedger) -> None:
    simulated, move = SimulatedHypervisor(ledger), act(Verb.REDEPLOY)

    perform(simulated, move)
    (begun,) = ledger.effects()
    perform(simulated, move, NOW + 60)
    perform(simulated, move, NOW + 500)
    (ended,) = ledger.effects()

    assert (begun.ended, begun.performs, begun.begun_at, begun.ends_at) == (False, 1, NOW, NOW + 120)
    assert (ended.ended, ended.performs, ended.begun_at, ended.ends_at) == (True, 3, NOW, NOW + 120)
    assert (ended.verb, ended.event_id, ended.to_host) == (Verb.REDEPLOY, "E1", "host-2")
    assert ledger.repeated_effects == 0


def test_the_note_of_a_moved_vm_names_its_new_host(ledger: EffectLedger) -> None:
    simulated, move = SimulatedHypervisor(ledger), act(Verb.REDEPLOY)
    perform(simulated, move)
    assert perform(simulated, move, NOW + 120) == ActDone(ok=True, note="redeploy took 2 min, now on 'host-2'")


def test_a_slow_hypervisor_takes_a_multiple_of_the_time(ledger: EffectLedger) -> None:
    assert perform(SimulatedHypervisor(ledger, SimulatedBehaviour((SlowRule(factor=4),))), act()) == ActUnderWay(
        at=NOW + 120
    )


def test_a_rule_can_set_the_time_an_act_takes(ledger: EffectLedger) -> None:
    simulated = SimulatedHypervisor(
        ledger, SimulatedBehaviour((DurationRule(verb=Verb.REBOOT, seconds=2.5), SlowRule(vm="web-*", factor=2)))
    )
    assert perform(simulated, act(duration_s=60)) == ActUnderWay(at=NOW + 5)
    assert perform(simulated, act(name="db-1")) == ActUnderWay(at=NOW + 2.5)
    assert perform(simulated, act(Verb.START, name="db-2")) == ActUnderWay(at=NOW + 20)


def test_an_act_that_fails_by_a_rule_has_no_effect(ledger: EffectLedger) -> None:
    simulated = SimulatedHypervisor(ledger, SimulatedBehaviour((FailRule(note="disk full"),)))
    assert [perform(simulated, act()) for _ in range(2)] == [ActDone(ok=False, note="disk full")] * 2
    assert ledger.effects() == []


@pytest.mark.parametrize("rule", [FailRule(note="disk full"), FalseSuccessRule()], ids=["fail", "lie"])
@pytest.mark.parametrize("rules", [(), (FailRule(),), (FalseSuccessRule(),)], ids=["none", "fail", "lie"])
def test_an_act_that_ended_by_a_rule_keeps_its_outcome_after_a_change_of_rules(
    tmp_path: Path, rule: BehaviourRule, rules: tuple[BehaviourRule, ...]
) -> None:
    """The store may not have its outcome yet, so the act is performed again after a restart."""
    first = SimulatedHypervisor(EffectLedger(tmp_path / "ledger.db"), SimulatedBehaviour((rule,)))
    done = perform(first, act())
    assert isinstance(done, ActDone)
    asyncio.run(first.close())

    second = SimulatedHypervisor(EffectLedger(tmp_path / "ledger.db"), SimulatedBehaviour(rules))
    assert second.has_begun(act().id)
    assert perform(second, act(), NOW + 3600) == done
    assert second.ledger.effects() == []
    asyncio.run(second.close())


def test_a_change_of_rules_does_not_affect_an_act_that_has_begun(ledger: EffectLedger) -> None:
    simulated = SimulatedHypervisor(ledger)
    perform(simulated, act())
    simulated.set_behaviour(SimulatedBehaviour((FailRule(), FalseSuccessRule(), SlowRule(factor=100))))
    assert perform(simulated, act(), NOW + 30) == ActDone(ok=True, note="reboot took 30 s")


def test_a_false_success_is_not_in_the_ledger(ledger: EffectLedger) -> None:
    simulated = SimulatedHypervisor(ledger, SimulatedBehaviour((FalseSuccessRule(),)))
    assert perform(simulated, act()) == ActDone(ok=True, note="reboot took 30 s")
    assert ledger.effects() == []
    assert ledger.vm_history("s/g/web-1").boots == 0


def test_an_unreachable_hypervisor_answers_after_the_given_number_of_attempts_per_act(ledger: EffectLedger) -> None:
    simulated = SimulatedHypervisor(ledger, SimulatedBehaviour((UnreachableRule(times=2),)))
    for one in (act(), act(event="E2")):
        for _ in range(2):
            with pytest.raises(Unavailable, match=f"VM 'web-1' does not answer for act '{one.id}'"):
                perform(simulated, one)
        assert ledger.find(one.id) is None
        assert perform(simulated, one) == ActUnderWay(at=NOW + 30)
    assert [effect.performs for effect in ledger.effects()] == [3, 3]


def test_unreachable_attempts_are_counted_across_restarts(ledger: EffectLedger) -> None:
    behaviour = SimulatedBehaviour((UnreachableRule(times=1),))
    with pytest.raises(Unavailable):
        perform(SimulatedHypervisor(ledger, behaviour), act())
    assert perform(SimulatedHypervisor(ledger, behaviour), act()) == ActUnderWay(at=NOW + 30)


def test_a_closed_hypervisor_is_unavailable() -> None:
    simulated = SimulatedHypervisor(EffectLedger(None))
    asyncio.run(simulated.close())
    with pytest.raises(Unavailable, match=r"ledger ':memory:' cannot be used now .*: try again later"):
        perform(simulated, act())
