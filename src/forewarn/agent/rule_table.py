"""The [[rules]] of the agent's file, and its profile."""

from __future__ import annotations

from collections.abc import Mapping

from forewarn.agent.profile import NOTICE_S, PROFILES, too_long_s
from forewarn.agent.table import Table, remedy_for
from forewarn.agent.value import OWN, Approve, Gate, Rule, Step, When
from forewarn.protocol.document import Kind, Source

_OUTCOMES = ("finished", "withdrawn", "unknown")


def rules_of(whole: Table, steps: Mapping[str, Step]) -> tuple[Rule, ...]:
    """The file's own rules in their order, then those of its profile."""
    rules = tuple(_rule(table, number, steps) for number, table in enumerate(whole.tables("rules"), start=1))
    _names_must_differ(whole, rules)
    every = (*rules, *_profile(whole, steps))
    if not every and not whole.raw.get("profile"):
        whole.refuse("", "the file has no rules", 'write profile = "fifteen-minutes", or [[rules]]')
    return every


def _profile(whole: Table, steps: Mapping[str, Step]) -> tuple[Rule, ...]:
    """A profile takes all steps, in the order of the file."""
    name = whole.text("profile")
    if not name:
        return ()
    if name not in PROFILES:
        whole.refuse("profile", f"there is no profile {name!r}", remedy_for(name, PROFILES, ""))
        return ()
    if not steps:
        whole.refuse("profile", f"the profile {name!r} has no steps to take", "write [steps.NAME] with what to do")
    over_s = too_long_s(name, list(steps.values()))
    if over_s:
        what = f"the steps need {over_s:g} s more than the {NOTICE_S[name]:g} s of the profile {name!r}"
        whole.refuse("profile", what, "give less budget, or say with cut = 1 which goes first")
    return PROFILES[name](tuple(steps.values()))


def _rule(table: Table, number: int, steps: Mapping[str, Step]) -> Rule:
    rule = Rule(
        name=table.text("name", f"rule {number}"),
        steps=_named(table, steps),
        kinds=table.words("kinds", [kind.value for kind in Kind]),
        sources=table.words("sources", [source.value for source in Source]),
        vms=table.text("vms", OWN),
        min_duration_s=table.seconds("min_duration", None),
        max_duration_s=table.seconds("max_duration", None),
        min_left_s=table.seconds("min_left", None),
        max_left_s=table.seconds("max_left", None),
        begin=table.choice("begin", ("at-once", "late"), "at-once"),
        margin_s=table.seconds("margin", 5.0),
        no_time=table.choice("no_time", ("essential", "all", "nothing"), "essential"),
        undo_on=table.words("undo_on", _OUTCOMES, _OUTCOMES),
        approve=_approve(table),
        gate=_gate(table),
    )
    _must_make_sense(table, rule)
    table.finish("absent")
    return rule


def _named(table: Table, steps: Mapping[str, Step]) -> tuple[Step, ...]:
    names = table.texts("steps")
    for name in names:
        if name not in steps:
            remedy = remedy_for(name, steps, f"write [steps.{name}] with what to do")
            table.refuse("steps", f"there is no step {name!r}", remedy)
    if len(set(names)) < len(names):
        table.refuse("steps", "a step is named twice", "name each once: it is taken once for an event")
    return tuple(steps[name] for name in names if name in steps)


def _approve(table: Table) -> Approve:
    when = When(table.choice("approve", tuple(When), When.NEVER.value))
    waits = table.raw.get("absent", "wait") == "wait"
    absent_after_s = None if waits else table.seconds("absent", None)
    if not waits and when is not When.ALL_DONE:
        table.refuse("absent", "absent says nothing without other VMs", 'write approve = "when-all-done", or leave it')
    return Approve(when=when, absent_after_s=absent_after_s)


def _gate(table: Table) -> Gate | None:
    gate = table.table("gate")
    if gate is None:
        return None
    made = Gate(
        command=gate.line("command"),
        url=gate.url("url"),
        timeout_s=gate.seconds("timeout", 10.0, least=0.1),
        every_s=gate.seconds("every", 10.0, least=0.1),
        deadline_s=gate.seconds("deadline", 300.0),
        on_silence=gate.choice("on_silence", ("wait", "approve"), "wait"),
    )
    gate.finish()
    if bool(made.command) == bool(made.url):
        table.refuse("gate", "a gate is a command or a url", 'write gate = { command = ["/usr/local/bin/may-i"] }')
    return made


def _must_make_sense(table: Table, rule: Rule) -> None:
    for name in ("duration", "left"):
        least, most = getattr(rule, f"min_{name}_s"), getattr(rule, f"max_{name}_s")
        if least is not None and most is not None and least > most:
            table.refuse(f"min_{name}", f"min_{name} is more than max_{name}", "swap them")
    if rule.gate is not None and rule.approve.when is When.NEVER:
        table.refuse("gate", "a gate stands before no approval", 'write approve = "when-done"')


def _names_must_differ(whole: Table, rules: tuple[Rule, ...]) -> None:
    names = [rule.name for rule in rules]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            whole.refuse("rules", f"two rules are called {name!r}", "give each a name of its own")
