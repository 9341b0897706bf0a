"""How the agent's things read: its plan, what a dry run would do, how things stand, the story of an event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from forewarn.agent.config import Config
from forewarn.agent.rehearsal import Rehearsal
from forewarn.agent.story import plan_table
from forewarn.agent.value import OWN, Rule
from forewarn.cli.connection import View
from forewarn.cli.instant import clock_times, distance, when
from forewarn.cli.invocation import Invocation
from forewarn.cli.screen import Cell, faint, joined, strong, word
from forewarn.cli.wording import counted, names
from forewarn.duration import span

NOTICES_S = {"15 minutes": 900.0, "30 seconds": 30.0, "7 days": 604_800.0}
_PLAN_HEADERS = ("step", "use", "budget", *NOTICES_S)
_EVENT_HEADERS = ("event", "kind", "status", "VMs", "not before", "rule", "now")


def plan_view(file: str, config: Config) -> View:
    return {"file": file, "steps": list(config.steps), "rules": [_rule_view(rule) for rule in config.rules]}


def _rule_view(rule: Rule) -> View:
    rows = plan_table(rule, tuple(NOTICES_S.values()))
    steps = [
        {
            "name": step.name,
            "use": step.use,
            "budget_s": step.budget_s,
            "begins": dict(zip(NOTICES_S, row, strict=True)),
        }
        for step, row in rows
    ]
    return {"name": rule.name, "for": _about(rule), "approve": rule.approve.when.value, "steps": steps}


def show_plan(call: Invocation, file: str, config: Config) -> None:
    call.screen.say(f"{file} is fine: {counted(len(config.rules), 'rule')}, {counted(len(config.steps), 'step')}.")
    for rule in config.rules:
        call.screen.say()
        call.screen.say(strong(rule.name), faint(f"  {_about(rule)}; approved: {rule.approve.when.value}"))
        rows = plan_table(rule, tuple(NOTICES_S.values()))
        if rows:
            call.screen.table(_PLAN_HEADERS, ([s.name, s.use, span(s.budget_s), *row] for s, row in rows))
        else:
            call.screen.say("no steps: the event is let pass")


def _about(rule: Rule) -> str:
    kinds = ", ".join(sorted(rule.kinds)) or "any event"
    sources = f" by {', '.join(sorted(rule.sources))}" if rule.sources else ""
    whose = "" if rule.vms == OWN else f" of {rule.vms}"
    return f"{kinds}{sources}{whose}{''.join(_bounds(rule))}"


def _bounds(rule: Rule) -> Iterator[str]:
    """How long the event takes, and how much time is left."""
    for text, bound in (
        (", taking {} or more", rule.min_duration_s),
        (", taking {} or less", rule.max_duration_s),
        (", {} or more ahead", rule.min_left_s),
        (", {} or less ahead", rule.max_left_s),
    ):
        if bound is not None:
            yield text.format(span(bound))


def rehearsal_view(rehearsal: Rehearsal) -> View:
    return {**asdict(rehearsal), "event": rehearsal.event.id, "kind": rehearsal.event.kind}


def show_rehearsals(call: Invocation, vm: str, rehearsals: Sequence[Rehearsal]) -> None:
    if not rehearsals:
        call.screen.say(f"No event is announced to {vm}: nothing would be done.")
    for rehearsal in rehearsals:
        call.screen.say(strong(rehearsal.title))
        for text in (*rehearsal.steps, *([rehearsal.approval] if rehearsal.approval else [])):
            call.screen.hang(joined("  "), text)


def show_state(call: Invocation, state: View) -> None:
    call.screen.facts(_facts(state))
    if not state["events"]:
        call.screen.say("No event is under way.")
        return
    call.screen.say()
    call.screen.table(_EVENT_HEADERS, [_event_row(call, event, state["now"]) for event in state["events"]])


def _facts(state: View) -> Iterator[tuple[str, Cell]]:
    yield "agent", _running(state)
    for name in ("vm", "endpoint"):
        if state.get(name):
            yield name, str(state[name])
    if state.get("health"):
        yield "health", _health(state["health"])
    holds = [f"{hold['step']} holds it for a {hold['kind']}" for hold in state["holds"]]
    yield "ready", "yes" if state["ready"] else f"no: {names(holds)}"
    yield "in maintenance", "yes" if state["in_maintenance"] else "no"
    for problem in state.get("problems", []):
        yield "problem", str(problem)


def _running(state: View) -> Cell:
    if not state["running"]:
        return joined(word("stopped"), ", as its journal says")
    if state["unheard"]:
        return joined(word("running"), ", but its pages are not reached from here; as its journal says")
    return word("running")


def _health(health: View) -> str:
    if health["text"]:
        return str(health["text"])
    return f"fine, answered {span(health['silent_s'] or 0)} ago"


def _event_row(call: Invocation, event: View, now: float) -> list[Cell]:
    return [
        strong(call.screen.short(event["key"])),
        event["kind"],
        word(event["outcome"] or event["status"]),
        names(event["vms"]),
        when(event["not_before"], now),
        event["rule"] or "none",
        _now(event, now),
    ]


def _now(event: View, now: float) -> str:
    """What is under way, else what is waited for, else how the steps ended."""
    deeds = [(step["name"], phase, step[phase]) for step in event["steps"] for phase in ("do", "undo") if step[phase]]
    under_way = [_named(name, phase) for name, phase, deed in deeds if deed["state"] == "begun"]
    if under_way:
        return f"{names(under_way)} under way"
    if event["waits_for"]:
        until = event["waits_until"]
        return str(event["waits_for"]) + ("" if until is None else f" ({distance(until, now)})")
    return names([f"{_named(name, phase)} {deed['state']}" for name, phase, deed in deeds])


def _named(step: str, phase: str) -> str:
    return step if phase == "do" else f"undo of {step}"


def show_story(call: Invocation, story: View) -> None:
    call.screen.say(strong(story["title"]))
    lines: list[dict[str, Any]] = list(story["lines"])
    times = clock_times((line["at"] for line in lines), lines[-1]["at"] if lines else 0.0)
    for line, time in zip(lines, times, strict=True):
        call.screen.hang(joined("  ", faint(time), "  "), line["text"])
        if line["detail"]:
            call.screen.hang(joined(" " * (len(time) + 4)), faint(line["detail"]))
    call.screen.hang(strong("now  "), story["now"])
