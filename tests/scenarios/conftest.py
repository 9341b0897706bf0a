"""Plays scenarios: text files of steps, each followed by the history entries that it leads to.

    # A user restarts a VM (spec §6.4)
    host h1
    vm web-0 host=h1

    > restart web-0
    05 12:00:00 requested  ann requested restart of web-0
    05 12:00:00 published  Reboot of web-0 scheduled
    > advance 1m
    (nothing)

Playing a file gives the file with the actual entries; the two must be equal. So a missing expectation fails, and a
step without consequences says `(nothing)`. E1, E2 are events in the order of their creation, R1, R2 requests;
`KEY=VALUE` sets a field of a host, a VM or the policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from forewarn.control.fleet import FleetChange
from forewarn.core.budgets import make_budget
from forewarn.core.decision import Policy
from forewarn.core.event import Event
from forewarn.core.fleet import Host, Vm
from forewarn.core.health import CheckOutcome, HealthCheck
from forewarn.core.history import LastPoll
from forewarn.core.projection import document_for
from forewarn.core.release import start_wait
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutState
from forewarn.core.waves import make_waves
from forewarn.core.windows import make_calendar
from forewarn.errors import ForewarnError
from forewarn.machines.simulated import BehaviourRule, SimulatedBehaviour
from forewarn.protocol.document import EventNotice
from forewarn.protocol.versions import NEWEST_VERSION
from tests.support.fake_prober import FakeProber
from tests.support.world import LAB_POLICY, World, a_host, a_vm

NOTHING = "(nothing)"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
ROLLOUT_COMMANDS = {"pause": RolloutState.PAUSED, "resume": RolloutState.RUNNING, "abort": RolloutState.ABORTED}
FOR_VMS = set(RequestedOperation) - {
    RequestedOperation.ROLLOUT,
    RequestedOperation.DEGRADE,
    RequestedOperation.FAIL,
    RequestedOperation.REPLAY,
    RequestedOperation.PERFORM_MAINTENANCE,
}
GUID = re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}")
Facts = dict[str, str]


class ScenarioPlayer:
    """One world, and the commands of scenarios. A command returns lines to show besides the history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._seen = world.store.last_seq()

    def step(self, line: str) -> list[str]:
        """Run one step; the lines that it leads to."""
        command, *rest = line.split()
        names = [text for text in rest if "=" not in text]
        facts = dict(text.split("=", 1) for text in rest if "=" in text)
        try:
            shown = self._command(command)(names, facts)
            self.world.settle()
        except ForewarnError as error:
            shown = [f"{type(error).__name__}: {error}{_remedy_text(error)}"]
        return [self._with_short_ids(text) for text in (*shown, *self._new_entries())] or [NOTHING]

    def _command(self, name: str) -> Callable[[list[str], Facts], list[str]]:
        if name in ROLLOUT_COMMANDS:
            return lambda names, facts: self._change_rollout(names[0], ROLLOUT_COMMANDS[name], facts)
        if name in FOR_VMS:
            return lambda names, facts: self._ask(RequestedOperation(name), names, facts)
        found: Callable[[list[str], Facts], list[str]] = getattr(self, f"do_{name.replace('-', '_')}")
        return found

    def _ask(self, ask: RequestedOperation, names: list[str], facts: Facts) -> list[str]:
        vms = [self.world.vm(name) for name in names]
        self.world.do(self.world.control.requests.request_for_vms(ask, vms, **_request_options(facts)))
        return []

    def _change_rollout(self, name: str, progress: RolloutState, facts: Facts) -> list[str]:
        who = facts.get("who", "ops")
        self.world.do(self.world.control.rollout_requests.change_state(self._request(name).id, progress, who=who))
        return []

    def do_advance(self, names: list[str], _facts: Facts) -> list[str]:
        self.world.advance(_seconds(names[0]))
        return []

    def do_wait(self, names: list[str], _facts: Facts) -> list[str]:
        """Let time pass without advancing the clock, so that VMs without polls do not count as polling."""
        clock, reconciler = self.world.clock, self.world.control.reconciler
        target = clock.now() + _seconds(names[0])
        while (wake := reconciler.next_wake_at()) is not None and wake < target:
            clock.apply_setting(clock.setting_after_jump(max(wake, clock.now())))
            self.world.settle()
        clock.apply_setting(clock.setting_after_jump(target))
        return []

    def do_away(self, names: list[str], _facts: Facts) -> list[str]:
        """Kill the service, and start another process after that time."""
        clock = self.world.clock
        clock.apply_setting(clock.setting_after_jump(clock.now() + _seconds(names[0])))
        self.world.restart()
        return []

    def do_approve(self, names: list[str], facts: Facts) -> list[str]:
        """Approve events as a VM (`by`) or as an operator (`who`)."""
        ids = tuple(self._event(name).id for name in names)
        if "who" in facts:
            for event_id in ids:
                self.world.do(self.world.control.requests.approve(event_id, who=facts["who"]))
            return []
        unknown = self.world.do(self.world.control.guests.approve(self.world.vm(facts["by"]).key, ids))
        return [] if unknown is None else [f"unknown to {facts['by']}: {unknown}"]

    def do_perform_maintenance(self, names: list[str], _facts: Facts) -> list[str]:
        self.world.do(
            self.world.control.requests.perform_maintenance([self.world.vm(name) for name in names], who="ann")
        )
        return []

    def do_withdraw(self, names: list[str], facts: Facts) -> list[str]:
        who = facts.get("who", "ann")
        self.world.do(self.world.control.requests.withdraw(self._event(names[0]).id, who=who))
        return []

    def do_degrade(self, names: list[str], facts: Facts) -> list[str]:
        notice_s = _seconds(facts.get("notice", "7d"))
        self.world.do(self.world.control.requests.degrade_host(names[0], who="ops", notice_s=notice_s))
        return []

    def do_fail(self, names: list[str], _facts: Facts) -> list[str]:
        self.world.do(self.world.control.requests.fail_host(names[0], who="ops"))
        return []

    def do_repair(self, names: list[str], _facts: Facts) -> list[str]:
        self.world.do(self.world.control.requests.repair_host(names[0], who="ops"))
        return []

    def do_rollout(self, names: list[str], facts: Facts) -> list[str]:
        """`rollout update h1 h2` or `rollout reboot scope_id=…`; with `canary=2 shares=10,50 settle=10m`.

        A `window` has `_` for blanks: `window=02:00_1h`. `checks=shop;cart:bad_limit=3` adds health checks.
        """
        impact, *hosts = names
        notice_s = _seconds(facts.pop("notice", "0s"))
        shares = [float(text) for text in facts.pop("shares", "").split(",") if text]
        waves = make_waves(facts.pop("canary", ""), shares)
        windows = [text.replace("_", " ") for text in facts.pop("window", "").split(";") if text]
        settle_s = _seconds(facts.pop("settle", "0s"))
        checks = tuple(map(_check, facts.pop("checks", "").split(";"))) if "checks" in facts else ()
        rollout = msgspec.convert({"impact": impact, "hosts": hosts, **facts}, Rollout, strict=False)
        rollout = msgspec.structs.replace(
            rollout, waves=waves, settle_s=settle_s, calendar=make_calendar(windows, (), None), checks=checks
        )
        self.world.do(self.world.control.rollout_requests.start(rollout, who="ops", notice_s=notice_s))
        return []

    def do_check(self, _names: list[str], facts: Facts) -> list[str]:
        """`check shop=bad`: what a health check finds from now on; `shop=bad,good`: the next ones, then as before."""
        prober = self.world.prober
        assert isinstance(prober, FakeProber)
        for name, text in facts.items():
            found = [CheckOutcome(word) for word in text.split(",")]
            if len(found) == 1:
                prober.outcomes[name] = found[0]
            else:
                prober.coming[name] = found
        return []

    def do_measured(self, names: list[str], _facts: Facts) -> list[str]:
        """Show the latest measurement of each check of a rollout, and how many there are."""
        found = self.world.store.measurements(self._request(names[0]).id)
        latest = {m.check: f"{m.check} is {m.outcome}: {m.text}" for m in found}
        return [f"{len(found)} measurements", *latest.values()]

    def do_hold(self, names: list[str], _facts: Facts) -> list[str]:
        """Hold all rollouts; the words are the reason."""
        self.world.do(self.world.control.rollouts.holds.set_hold(" ".join(names), who="ops"))
        return []

    def do_lift_hold(self, _names: list[str], _facts: Facts) -> list[str]:
        self.world.do(self.world.control.rollouts.holds.lift_hold(who="ops"))
        return []

    def do_budget(self, names: list[str], facts: Facts) -> list[str]:
        """`budget all max_vms=1`, with `per=location`: what may be out of service at once."""
        budget = make_budget(names[0], max_vms=int(facts["max_vms"]), per=facts.get("per", "everything"))
        self.world.do(self.world.control.budgets.set_budget(budget, who="ops"))
        return []

    def do_add(self, names: list[str], facts: Facts) -> list[str]:
        added = tuple(_with(a_vm(name), facts) for name in names)
        self.world.do(self.world.control.fleet.apply_change(FleetChange(vms=added), who="ops"))
        return []

    def do_remove(self, names: list[str], _facts: Facts) -> list[str]:
        gone = tuple(self.world.vm(name) for name in names)
        self.world.do(self.world.control.fleet.apply_change(FleetChange(removed=gone), who="ops"))
        return []

    def do_hypervisor(self, _names: list[str], facts: Facts) -> list[str]:
        """Set one rule for acts that begin from now on; without fields, no rule."""
        rules: tuple[BehaviourRule, ...] = (msgspec.convert(facts, BehaviourRule, strict=False),) if facts else ()
        self.world.hypervisor.set_behaviour(SimulatedBehaviour(rules))
        return []

    def do_poll(self, names: list[str], facts: Facts) -> list[str]:
        """Poll as a VM, and show its document."""
        vm = self.world.vm(names[0])
        self.world.do(self.world.control.guests.enable_scope_of(vm.key))
        polled = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=self.world.now, version=NEWEST_VERSION)
        self.world.do(self.world.store.record_observations([polled], []))
        return self.do_see(names, facts)

    def do_see(self, names: list[str], _facts: Facts) -> list[str]:
        """Show the document of a VM without a poll."""
        scope = self.world.scope(names[0])
        document = document_for(scope)
        if scope.is_narrow:
            document = document.narrowed_to(names[0])
        return [f"document {document.incarnation} of epoch {scope.epoch}", *map(_notice_text, document.notices)]

    def do_where(self, names: list[str], _facts: Facts) -> list[str]:
        vms = {vm.name: vm for vm in self.world.store.vms(removed=True)}
        return [_vm_text(vms[name]) for name in names]

    def do_explain(self, names: list[str], _facts: Facts) -> list[str]:
        """Say what an event (`E1`) waits for to start, or a rollout (`R1`) to publish more."""
        if names[0].startswith("R"):
            waits = self.world.control.rollouts.publication_waits(self._request(names[0]))
            return [f"{names[0]} waits: {wait}" for wait in waits]
        event = self._event(names[0])
        scope = self.world.store.scope(event.scope_id)
        assert scope is not None
        wait = start_wait(scope, event, self.world.control.transactions.context_for(scope))
        return [f"{names[0]} waits for {wait.text}" if wait else f"{names[0]} starts now"]

    def _new_entries(self) -> Iterator[str]:
        transcript = self.world.transcript(after=self._seen)
        self._seen = self.world.store.last_seq()
        yield from transcript.splitlines()

    def _event(self, name: str) -> Event:
        return self.world.events()[int(name.removeprefix("E")) - 1]

    def _request(self, name: str) -> MaintenanceRequest:
        return self.world.store.requests()[int(name.removeprefix("R")) - 1]

    def _with_short_ids(self, text: str) -> str:
        """The text with E1, E2, R1 in place of ids."""
        names = {event.id: f"E{n}" for n, event in enumerate(self.world.events(), 1)}
        names |= {request.id: f"R{n}" for n, request in enumerate(self.world.store.requests(), 1)}
        return GUID.sub(lambda found: names.get(found[0], found[0]), text)


def _remedy_text(error: ForewarnError) -> str:
    """The remedy of an error with its fields: ` [explain-event event=E2]`."""
    if error.remedy_code is None:
        return ""
    fields = "".join(f" {name}={value}" for name, value in error.remedy_fields.items())
    return f" [{error.remedy_code}{fields}]"


def _seconds(text: str) -> float:
    return float(text[:-1]) * UNITS[text[-1]]


def _request_options(facts: Facts) -> dict[str, Any]:
    asking: dict[str, Any] = {"who": facts.pop("who", "ann"), "short_notice": facts.pop("short", "") == "yes"}
    return {**asking, **{f"{key}_s": _seconds(value) for key, value in facts.items()}}


def _check(text: str) -> HealthCheck:
    """A health check from its name, and fields such as `shop:bad_limit=3:interval_s=30`."""
    name, *fields = text.split(":")
    url = f"http://{name}.example"
    given = dict(field.split("=", 1) for field in fields)
    return msgspec.convert({"name": name, "kind": "http", "url": url, **given}, HealthCheck, strict=False)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%d %H:%M:%S}"


def _notice_text(notice: EventNotice) -> str:
    when = f", not before {_clock(notice.not_before)}" if notice.not_before is not None else ""
    return f"  {notice.id} {notice.kind} {notice.status} of {', '.join(notice.resources)} by {notice.source}{when}"


def _vm_text(vm: Vm) -> str:
    if vm.removed_at is not None:
        return f"{vm.name} is gone"
    return f"{vm.name} is {vm.power}" + (f" on {vm.host}" if vm.host else "")


def _with(value: Any, facts: Facts) -> Any:
    """The value with the fields that the file gives."""
    given: dict[str, Any] = {**msgspec.to_builtins(value), **facts}
    if "tags" in facts:
        given["tags"] = dict([facts["tags"].split(":")])
    if "auto_approve" in facts:
        given["auto_approve"] = {facts["auto_approve"]: True}
    return msgspec.convert(given, type(value), strict=False)


def _world(setup: list[str]) -> World:
    policy: Policy = LAB_POLICY
    hosts: list[Host] = []
    vms: list[Vm] = []
    for line in setup:
        kind, *rest = line.split()
        facts = dict(text.split("=", 1) for text in rest if "=" in text)
        names = [text for text in rest if "=" not in text]
        if kind == "policy":
            policy = _with(policy, facts)
        elif kind == "host":
            hosts += [_with(a_host(name), facts) for name in names]
        elif kind == "vm":
            vms += [_with(a_vm(name), facts) for name in names]
        else:
            raise ValueError(f"a scenario begins with policy, host and vm lines, not with {line!r}")
    return World(hosts=hosts, vms=vms, policy=policy, prober=FakeProber())


def played(text: str) -> str:
    """The scenario with the actual lines after each step."""
    head, *steps = re.split(r"^> ", text, flags=re.MULTILINE)
    setup = [line for line in head.splitlines() if line.strip() and not line.startswith("#")]
    lines = []
    with closing(_world(setup)) as world:
        player = ScenarioPlayer(world)
        for step in steps:
            line, *rest = step.splitlines()
            remarks = [text for text in rest if text.startswith("#") or not text]
            lines += [f"> {line}", *player.step(line), *remarks]
    return head + "".join(f"{line}\n" for line in lines)


@pytest.fixture(scope="session")
def play() -> Callable[[str], str]:
    return played
