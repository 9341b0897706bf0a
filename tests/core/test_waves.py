"""Waves of a rollout (spec §13.1): which VMs each takes, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forewarn.core.fleet import PowerState, Vm
from forewarn.core.request import Rollout, RolloutImpact, WaveSpec
from forewarn.core.rollout import InvalidRollout
from forewarn.core.waves import (
    WaveStep,
    covers_vm,
    divide_into_waves,
    has_tag,
    require_target,
    require_valid_waves,
    rollout_target_text,
    wave_phase,
    wave_specs,
)
from tests.support.world import a_vm

CANARY = WaveSpec(name="canary", vms=2)
HALF = WaveSpec(name="half", share=50)
TAGGED = WaveSpec(name="canary", tag="canary")


def some_vms(count: int = 10, domains: int = 2, per_host: int = 1) -> list[Vm]:
    return [
        a_vm(
            f"web-{n}", host=f"h{n // per_host:02}", availability_set="web", update_domain=n % domains,
            tags={"canary": "yes"} if n == 7 else {},
        )
        for n in range(count)
    ]  # fmt: skip


def a_rollout(*waves: WaveSpec, impact: RolloutImpact = RolloutImpact.MIGRATE, **fields: object) -> Rollout:
    return Rollout(**{"impact": impact, "everything": True, "waves": waves, **fields})  # type: ignore[arg-type]


def names(waves: Sequence[Sequence[Vm]]) -> list[list[str]]:
    return [[vm.name for vm in wave] for wave in waves]


def test_the_canary_is_followed_by_the_shares_and_the_rest() -> None:
    """Spec §13.1."""
    waves = divide_into_waves(a_rollout(CANARY, HALF), some_vms())
    assert [len(wave) for wave in waves] == [2, 5, 3]
    assert names(waves)[0] == ["web-0", "web-2"], "the lowest update domain comes first"


def test_every_vm_is_in_exactly_one_wave() -> None:
    waves = divide_into_waves(a_rollout(TAGGED, WaveSpec(name="some", share=33.3)), some_vms(13, 3, per_host=2))
    assert sorted(name for wave in names(waves) for name in wave) == sorted(vm.name for vm in some_vms(13, 3))


def test_a_rollout_without_waves_has_one_with_all_vms() -> None:
    assert len(divide_into_waves(a_rollout(), some_vms())) == 1


def test_a_share_is_of_all_vms_of_the_rollout_and_rounded_up() -> None:
    waves = divide_into_waves(a_rollout(CANARY, WaveSpec(name="a", share=1), WaveSpec(name="b", share=30)), some_vms())
    assert [len(wave) for wave in waves] == [2, 1, 3, 4]


def test_a_canary_tag_takes_the_vms_that_have_it() -> None:
    assert names(divide_into_waves(a_rollout(TAGGED), some_vms()))[0] == ["web-7"]


@pytest.mark.parametrize("canary", [WaveSpec(name="canary", vms=1), TAGGED], ids=["number", "tag"])
def test_work_on_whole_hosts_takes_all_vms_of_a_host_into_one_wave(canary: WaveSpec) -> None:
    waves = divide_into_waves(a_rollout(canary, impact=RolloutImpact.UPDATE), some_vms(9, per_host=3))
    assert [len(wave) for wave in waves] == [3, 6]
    assert len({vm.host for vm in waves[0]}) == 1


def test_work_on_a_scope_takes_single_vms() -> None:
    vms = some_vms(9, per_host=3)
    rollout = Rollout(impact=RolloutImpact.UPDATE, scope_id=vms[0].scope_id, waves=(CANARY,))
    assert len(divide_into_waves(rollout, vms)[0]) == 2


def test_vms_on_no_host_are_in_no_wave() -> None:
    vms = [*some_vms(2), a_vm("off", host="", power=PowerState.DEALLOCATED)]
    assert "off" not in str(names(divide_into_waves(a_rollout(CANARY), vms)))


def test_the_first_step_is_to_begin_the_first_wave_that_has_vms() -> None:
    rollout = a_rollout(WaveSpec(name="gone", tag="gone"), CANARY)
    phase = wave_phase(rollout, some_vms(), (), (), 0.0)
    assert (phase.step, phase.wave, len(phase.members), len(phase.remaining)) == (WaveStep.BEGIN, 1, 2, 10)


def test_a_rollout_without_vms_is_done() -> None:
    assert wave_phase(a_rollout(CANARY, settle_s=60), [], (), (), 0.0).step is WaveStep.DONE


def test_the_last_wave_is_the_rest_with_any_name() -> None:
    last = WaveSpec(name="everybody else")
    assert wave_specs(a_rollout(CANARY, last))[-1] is last
    assert wave_specs(a_rollout(CANARY))[-1].name == "rest"


@pytest.mark.parametrize(
    ("tag", "expected"),
    [("app", True), ("APP", True), ("app=web", True), ("App=web", True), ("app=Web", False), ("ap", False)],
)
def test_a_tag_is_a_name_in_any_case_or_a_name_with_an_exact_value(tag: str, expected: bool) -> None:
    assert has_tag(a_vm("web", tags={"App": "web"}), tag) is expected


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({"hosts": ("h1",)}, "h1"),
        ({"scope_id": "vm:sub/lab/web"}, "web"),
        ({"tag": "app=web"}, "VMs with the tag app=web"),
        ({"location": "WestEurope"}, "VMs in WestEurope"),
        ({"everything": True}, "all VMs"),
    ],
)
def test_each_kind_of_target_covers_its_vms_and_has_words(target: dict[str, object], text: str) -> None:
    rollout = Rollout(impact=RolloutImpact.UPDATE, **target)  # type: ignore[arg-type]
    assert covers_vm(rollout, a_vm("web", tags={"app": "web"}))
    assert covers_vm(rollout, a_vm("db", host="h2", location="northeurope")) is bool(rollout.everything)
    assert rollout_target_text(rollout) == text


@pytest.mark.parametrize(
    ("waves", "path", "message"),
    [
        ([WaveSpec(name="a", share=-1)], ("waves", 0, "share"), "wave 'a' has a share of -1 %: give 0.01 to 100"),
        ([WaveSpec(name="a", share=101)], ("waves", 0, "share"), "has a share of 101 %"),
        ([WaveSpec(name="a", vms=-3)], ("waves", 0, "vms"), "wave 'a' has -3 VMs: give a number from 1 on"),
        ([WaveSpec(name="a", vms=1, tag="canary")], ("waves", 0, "tag"), "has several sizes"),
        ([WaveSpec(name="a"), WaveSpec(name="b", vms=1)], ("waves", 0), "takes all the rest, so no wave may follow"),
        ([WaveSpec(name="a", vms=1), WaveSpec(name="A")], ("waves", 1, "name"), "two waves are called 'A'"),
        ([WaveSpec(name=" ", vms=1)], ("waves", 0, "name"), "a wave needs a name"),
        ([WaveSpec(name="a", tag="nope")], ("waves", 0, "tag"), "wave 'a' is empty, because no VM of the rollout has"),
        (
            [HALF, WaveSpec(name="b", share=51)],
            ("waves", 1, "share"),
            "the shares make 101 %, and there are only 100 %",
        ),
        ([WaveSpec(name=f"w{n}", vms=1) for n in range(101)], ("waves",), "101 waves are too many"),
    ],
)
def test_waves_that_cannot_work_are_rejected(waves: list[WaveSpec], path: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidRollout) as raised:
        require_valid_waves(a_rollout(*waves), some_vms())
    assert raised.value.path == path
    assert message in str(raised.value)


@pytest.mark.parametrize("settle_s", [-1.0, 31 * 86_400.0, float("nan")])
def test_an_impossible_settling_time_is_rejected(settle_s: float) -> None:
    with pytest.raises(InvalidRollout, match=r"a settling time of .* is not possible"):
        require_valid_waves(a_rollout(settle_s=settle_s), some_vms())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({}, "give exactly one of them"),
        ({"everything": True, "tag": "app"}, "give exactly one of them"),
        ({"tag": "app"}, "no VM of the fleet has the tag 'app'"),
        ({"location": "mars"}, "the fleet has no VM in 'mars'"),
    ],
)
def test_a_target_without_vms_and_two_targets_are_rejected(target: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRollout, match=message):
        require_target(Rollout(impact=RolloutImpact.UPDATE, **target), [])  # type: ignore[arg-type]
