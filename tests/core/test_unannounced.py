"""What a comparison of one VM with its hosts finds: a table of stored facts, reports, findings and facts afterwards."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from forewarn.core.acts import vm_after_act
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.core.fleet import LastSeen, PowerState, Vm, VmCondition
from forewarn.core.history import EntryKind
from forewarn.core.unannounced import (
    ObservedMachine,
    ObservedState,
    StateCause,
    UnannouncedKind,
    VmFinding,
    VmReports,
    compare_vm,
)
from tests.support.world import a_vm

K, P, C, S, W = UnannouncedKind, PowerState, VmCondition, ObservedState, StateCause
RUNS = ObservedMachine(state=S.RUNNING, instance="7")
PAUSED = ObservedMachine(state=S.PAUSED, cause=W.OPERATOR, instance="7")
HALTED = ObservedMachine(state=S.PAUSED, cause=W.CRASH, instance="7")
CHANGING = ObservedMachine(state=S.CHANGING)


def off(cause: StateCause = W.UNKNOWN) -> ObservedMachine:
    return ObservedMachine(state=S.OFF, cause=cause)


def stored(
    power: PowerState = P.RUNNING, host: str = "h1", condition: VmCondition = C.NORMAL, instance: str = "7"
) -> Vm:
    """A VM that was compared before."""
    known = instance if power is P.RUNNING else ""
    return a_vm("web", power=power, host=host, seen=LastSeen(condition=condition, instance=known))


def compare(vm: Vm, found: dict[str, ObservedMachine], silent: str = "") -> tuple[VmFinding, ...]:
    """Compare with what h1, h2 and h3 report; `silent` hosts do not answer."""
    reports = VmReports(found=found, own_host_answered=vm.host not in silent.split(), all_hosts_answered=not silent)
    return compare_vm(vm, reports)


def summary(findings: tuple[VmFinding, ...]) -> list[tuple[UnannouncedKind | None, str, PowerState, VmCondition]]:
    found = []
    for finding in findings:
        assert finding.vm.seen is not None
        found.append((finding.kind, finding.vm.host, finding.vm.power, finding.vm.seen.condition))
    return found


STOPPED, GONE = stored(P.STOPPED), stored(P.DEALLOCATED, host="")
FINDINGS = [
    pytest.param(stored(), {"h1": RUNS}, [], id="it runs as it should"),
    pytest.param(STOPPED, {"h1": off()}, [], id="it is off as it should"),
    pytest.param(GONE, {}, [], id="it is on no host as it should"),
    pytest.param(stored(), {"h1": RUNS, "h2": off()}, [], id="an old definition elsewhere does not matter"),
    pytest.param(stored(), {"h1": off(W.CRASH)}, [(K.CRASHED, "h1", P.STOPPED, C.CRASHED)], id="crashed"),
    pytest.param(stored(), {"h1": off(W.GUEST)}, [(K.SHUT_DOWN, "h1", P.STOPPED, C.NORMAL)], id="shut down"),
    pytest.param(stored(), {"h1": off(W.OPERATOR)}, [(K.POWERED_OFF, "h1", P.STOPPED, C.NORMAL)], id="powered off"),
    pytest.param(stored(), {"h1": off()}, [(K.STOPPED, "h1", P.STOPPED, C.CRASHED)], id="off for an unknown reason"),
    pytest.param(
        stored(), {"h1": off(W.MIGRATED)}, [(K.STOPPED, "h1", P.STOPPED, C.CRASHED)], id="migrated to nowhere"
    ),
    pytest.param(STOPPED, {"h1": RUNS}, [(K.STARTED, "h1", P.RUNNING, C.NORMAL)], id="started"),
    pytest.param(STOPPED, {"h2": RUNS}, [(K.STARTED, "h2", P.RUNNING, C.NORMAL)], id="started elsewhere"),
    pytest.param(GONE, {"h2": RUNS}, [(K.STARTED, "h2", P.RUNNING, C.NORMAL)], id="a deallocated one started"),
    pytest.param(stored(), {"h2": RUNS}, [(K.MOVED, "h2", P.RUNNING, C.NORMAL)], id="moved"),
    pytest.param(
        stored(),
        {"h1": off(W.MIGRATED), "h2": RUNS},
        [(K.MOVED, "h2", P.RUNNING, C.NORMAL)],
        id="moved, definition kept",
    ),
    pytest.param(
        stored(),
        {"h2": PAUSED},
        [(K.MOVED, "h2", P.RUNNING, C.NORMAL), (K.PAUSED, "h2", P.RUNNING, C.PAUSED)],
        id="moved and paused",
    ),
    pytest.param(
        stored(),
        {"h2": off(W.CRASH)},
        [(K.MOVED, "h2", P.RUNNING, C.NORMAL), (K.CRASHED, "h2", P.STOPPED, C.CRASHED)],
        id="moved and crashed",
    ),
    pytest.param(STOPPED, {"h2": off()}, [(K.MOVED, "h2", P.STOPPED, C.NORMAL)], id="moved while it was off"),
    pytest.param(STOPPED, {"h2": off(), "h3": off()}, [], id="two definitions elsewhere cannot be told apart"),
    pytest.param(stored(), {"h1": PAUSED}, [(K.PAUSED, "h1", P.RUNNING, C.PAUSED)], id="paused"),
    pytest.param(stored(condition=C.PAUSED), {"h1": PAUSED}, [], id="still paused"),
    pytest.param(stored(), {"h1": HALTED}, [(K.CRASHED, "h1", P.RUNNING, C.CRASHED)], id="its guest crashed"),
    pytest.param(stored(condition=C.CRASHED), {"h1": HALTED}, [], id="its guest is still crashed"),
    pytest.param(
        stored(condition=C.CRASHED), {"h1": RUNS}, [(K.RESUMED, "h1", P.RUNNING, C.NORMAL)], id="its guest was reset"
    ),
    pytest.param(
        stored(condition=C.CRASHED),
        {"h1": off(W.OPERATOR)},
        [(K.POWERED_OFF, "h1", P.STOPPED, C.NORMAL)],
        id="a crashed guest was powered off",
    ),
    pytest.param(stored(condition=C.PAUSED), {"h1": RUNS}, [(K.RESUMED, "h1", P.RUNNING, C.NORMAL)], id="resumed"),
    pytest.param(
        stored(instance="6"), {"h1": RUNS}, [(K.RESTARTED, "h1", P.RUNNING, C.NORMAL)], id="another process runs it"
    ),
    pytest.param(stored(instance=""), {"h1": RUNS}, [(None, "h1", P.RUNNING, C.NORMAL)], id="restarted by an act"),
    pytest.param(stored(), {}, [(K.REMOVED, "h1", P.STOPPED, C.MISSING)], id="removed"),
    pytest.param(stored(P.STOPPED, condition=C.MISSING), {}, [], id="still missing"),
    pytest.param(
        stored(P.STOPPED, condition=C.MISSING), {"h1": off()}, [(None, "h1", P.STOPPED, C.NORMAL)], id="defined again"
    ),
    pytest.param(
        stored(), {"h1": RUNS, "h2": RUNS}, [(K.DUPLICATED, "h1", P.RUNNING, C.DUPLICATE)], id="active on two hosts"
    ),
    pytest.param(stored(condition=C.DUPLICATE), {"h1": PAUSED, "h2": RUNS}, [], id="still active on two hosts"),
    pytest.param(
        stored(condition=C.DUPLICATE),
        {"h1": RUNS, "h2": off()},
        [(None, "h1", P.RUNNING, C.NORMAL)],
        id="active once again",
    ),
    pytest.param(
        stored(condition=C.DUPLICATE), {"h2": RUNS}, [(K.MOVED, "h2", P.RUNNING, C.NORMAL)], id="the other copy is left"
    ),
    pytest.param(stored(), {"h1": CHANGING}, [], id="in the middle of something"),
    pytest.param(stored(), {"h1": RUNS, "h2": CHANGING}, [], id="it is being received elsewhere"),
    pytest.param(stored(P.STOPPED, condition=C.CRASHED), {"h1": off()}, [], id="it crashed, and the host forgot why"),
]


@pytest.mark.parametrize(("vm", "found", "expected"), FINDINGS)
def test_a_comparison_finds_what_changed_and_is_then_satisfied(
    vm: Vm,
    found: dict[str, ObservedMachine],
    expected: list[tuple[UnannouncedKind | None, str, PowerState, VmCondition]],
) -> None:
    findings = compare(vm, found)
    assert summary(findings) == expected
    after = findings[-1].vm if findings else vm
    assert compare_vm(after, VmReports(found=found)) == ()


@pytest.mark.parametrize(
    ("vm", "silent", "found", "expected"),
    [
        pytest.param(stored(), "h1", {}, [], id="its host is silent"),
        pytest.param(stored(), "h2", {}, [], id="it may be on the silent host"),
        pytest.param(stored(), "h2", {"h1": off(W.MIGRATED)}, [], id="it may have arrived on the silent host"),
        pytest.param(stored(), "h2", {"h1": off(W.CRASH)}, [K.CRASHED], id="its own host says that it crashed"),
        pytest.param(stored(), "h1", {"h2": RUNS}, [K.MOVED], id="another host runs it"),
        pytest.param(STOPPED, "h3", {"h2": off()}, [], id="it may be defined on the silent host"),
        pytest.param(stored(), "h1", {"h2": RUNS, "h3": RUNS}, [K.DUPLICATED], id="two others run it"),
    ],
)
def test_a_silent_host_leaves_open_what_it_alone_could_answer(
    vm: Vm, silent: str, found: dict[str, ObservedMachine], expected: list[UnannouncedKind]
) -> None:
    assert [finding.kind for finding in compare(vm, found, silent)] == expected


@pytest.mark.parametrize("seen", [None, LastSeen(is_uncertain=True)], ids=["first comparison", "after a failed act"])
@pytest.mark.parametrize(
    ("power", "found"),
    [
        (P.RUNNING, {"h2": RUNS}),
        (P.RUNNING, {"h1": PAUSED}),
        (P.RUNNING, {"h1": HALTED}),
        (P.RUNNING, {"h1": off(W.CRASH)}),
        (P.RUNNING, {"h2": off(W.OPERATOR)}),
        (P.RUNNING, {}),
        (P.STOPPED, {"h1": RUNS}),
    ],
    ids=["moved", "paused", "halted", "off", "off elsewhere", "missing", "running"],
)
def test_nobody_is_blamed_for_what_may_have_been_so_before_or_be_our_own_doing(
    seen: LastSeen | None, power: PowerState, found: dict[str, ObservedMachine]
) -> None:
    findings = compare(a_vm("web", power=power, seen=seen), found)
    assert findings
    assert {finding.kind for finding in findings} == {None}
    assert "somebody else" not in " ".join(finding.text for finding in findings)
    entries = [entry for finding in findings if (entry := finding.entry(5.0)) is not None]
    assert {entry.kind for entry in entries} == {EntryKind.FLEET}


def test_two_copies_are_reported_even_by_the_first_comparison() -> None:
    (finding,) = compare(a_vm("web"), {"h1": RUNS, "h2": RUNS})
    assert finding.kind is K.DUPLICATED
    assert finding.text == (
        "web is active on h1 and h2 at once: end all but one now, because two copies destroy its disks"
    )


def test_a_vm_that_is_off_at_first_stays_off_and_one_that_an_act_left_off_is_booted_again() -> None:
    (first,) = compare(a_vm("web"), {"h1": off()})
    (after_act,) = compare(a_vm("web", seen=LastSeen(is_uncertain=True)), {"h1": off(W.OPERATOR)})
    for finding, is_on_purpose in ((first, True), (after_act, False)):
        vm = replace(a_vm("web"), power=finding.vm.power, seen=finding.vm.seen)
        assert vm.is_stopped_on_purpose is is_on_purpose


@pytest.mark.parametrize(
    ("vm", "found", "needs_second_look"),
    [
        (stored(), {"h1": off(W.CRASH)}, False),
        (stored(), {"h1": PAUSED}, False),
        (STOPPED, {"h1": RUNS}, False),
        (stored(instance="6"), {"h1": RUNS}, False),
        (STOPPED, {"h2": RUNS}, True),
        (stored(), {"h2": RUNS}, True),
        (stored(), {"h1": RUNS, "h2": RUNS}, True),
        (stored(), {"h1": off(W.MIGRATED)}, True),
        (stored(), {}, True),
    ],
    ids=["crash", "pause", "start", "restart", "start elsewhere", "move", "two copies", "left", "removed"],
)
def test_only_findings_from_several_hosts_need_a_second_look(
    vm: Vm, found: dict[str, ObservedMachine], needs_second_look: bool
) -> None:
    assert compare(vm, found)[0].compares_hosts is needs_second_look


def test_an_entry_names_the_vm_the_host_and_the_kind_of_change() -> None:
    (finding,) = compare(stored(), {"h2": RUNS})
    entry = finding.entry(5.0)
    assert entry is not None
    assert (entry.at, entry.kind, entry.vm, entry.host) == (5.0, EntryKind.UNANNOUNCED, "web", "h2")
    assert entry.text == "web is on h2 instead of h1: moved by somebody else, without notice"


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (W.DISK_ERROR, "paused because of a disk error, without notice"),
        (W.WATCHDOG, "paused by its watchdog, without notice"),
        (W.OPERATOR, "paused by somebody else, without notice"),
    ],
)
def test_a_pause_says_who_or_what_caused_it(cause: StateCause, reason: str) -> None:
    (finding,) = compare(stored(), {"h1": ObservedMachine(state=S.PAUSED, cause=cause)})
    assert finding.text == f"web is paused on h1: {reason}"


def test_every_combination_of_reports_ends_and_changes_no_name() -> None:
    machines = [None, RUNS, PAUSED, HALTED, CHANGING, *map(off, W)]
    vms = [stored(p, condition=c) for p, c in product((P.RUNNING, P.STOPPED), C)] + [GONE, a_vm("web")]
    for vm, here, there, silent in product(vms, machines, machines, ("", "h1", "h2")):
        listed = {"h1": here, "h2": there}
        found = {host: m for host, m in listed.items() if m is not None and host not in silent}
        findings = compare(vm, found, silent)
        assert len(findings) < 4
        if findings:
            assert findings[-1].vm.name == "web"
            again = VmReports(
                found=found, own_host_answered=findings[-1].vm.host != silent, all_hosts_answered=not silent
            )
            assert compare_vm(findings[-1].vm, again) == (), (vm, found)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (C.NORMAL, {"h1": RUNS}),
        (C.PAUSED, {"h1": PAUSED}),
        (C.CRASHED, {"h1": HALTED}),
        (C.DUPLICATE, {"h1": RUNS, "h2": RUNS}),
    ],
)
def test_a_failed_act_that_changed_nothing_leaves_no_entry(
    condition: VmCondition, found: dict[str, ObservedMachine]
) -> None:
    (finding,) = compare(a_vm("web", seen=LastSeen(condition=condition, is_uncertain=True)), found)
    assert (finding.kind, finding.entry(5.0)) == (None, None)
    assert finding.vm.seen is not None
    assert (finding.vm.seen.condition, finding.vm.seen.is_uncertain) == (condition, False)


def act(verb: Verb, *, is_stopped: bool = False) -> Act:
    return Act(id="E:web", vm="sub/lab/web", name="web", verb=verb, event_id="E", to_host="h2", is_stopped=is_stopped)


@pytest.mark.parametrize(
    ("verb", "power", "condition"),
    [
        (Verb.REBOOT, P.RUNNING, C.NORMAL),
        (Verb.REDEPLOY, P.RUNNING, C.NORMAL),
        (Verb.REIMAGE, P.RUNNING, C.NORMAL),
        (Verb.START, P.RUNNING, C.NORMAL),
        (Verb.POWER_OFF, P.STOPPED, C.NORMAL),
        (Verb.DEALLOCATE, P.DEALLOCATED, C.NORMAL),
        (Verb.MIGRATE, P.STOPPED, C.CRASHED),
        (Verb.FREEZE, P.STOPPED, C.CRASHED),
    ],
)
def test_an_act_on_a_crashed_vm_boots_it_or_leaves_it_crashed(
    verb: Verb, power: PowerState, condition: VmCondition
) -> None:
    crashed = stored(P.STOPPED, condition=C.CRASHED)
    assert not crashed.is_stopped_on_purpose
    after = vm_after_act(crashed, act(verb), 5.0)
    assert (after.power, after.seen) == (power, LastSeen(condition=condition))


def test_an_act_on_a_vm_that_is_not_observed_leaves_its_power_state_alone() -> None:
    assert vm_after_act(a_vm("web", power=P.STOPPED), act(Verb.REBOOT), 5.0) == a_vm("web", power=P.STOPPED)
