"""Commands for the agent inside a VM: run, check its file, status, explain an event, repair.

The status comes from the running agent's HTTP pages, or from its journal when none answers. Needs the [agent] extra
only.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from forewarn.agent.actions import AgentSnapshot
from forewarn.agent.config import DEFAULT_LISTEN_ADDRESS, AgentConfig, load_config, parse_listen_address
from forewarn.agent.explanation import AgentExplanation, DryRun, dry_run_event, explain_event, step_plan_table
from forewarn.agent.journal import AgentJournal, is_journal_locked
from forewarn.agent.journal_repair import JournalRepair, repair_journal
from forewarn.agent.model import OWN_VM, EventRecord, RuleConfig
from forewarn.agent.status import state_view
from forewarn.base.clock import read_real_time
from forewarn.base.duration import format_duration
from forewarn.base.times import time_text
from forewarn.cli.api_client import JsonObject
from forewarn.cli.invocation import CommandFunction, Invocation, offline_command
from forewarn.cli.output import (
    Cell,
    bold,
    clock_times,
    count_noun,
    describe_time,
    dim,
    join_names,
    join_text,
    relative_time,
    state_text,
)
from forewarn.client import Client
from forewarn.client.cursor import read_boot_id
from forewarn.errors import NotFound, Rejected, Unavailable

DEFAULT_CONFIG = "/etc/forewarn/agent.toml"
CONFIG_VARIABLE = "FOREWARN_AGENT_CONFIG"


def _config_option(function: CommandFunction) -> CommandFunction:
    return click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        default=DEFAULT_CONFIG,
        help=f"Read this agent file.  [env: {CONFIG_VARIABLE}; default: {DEFAULT_CONFIG}]",
    )(function)


@click.group()
def agent() -> None:
    """Run the agent, which reacts to a VM's events, and show its state."""


@agent.command()
@_config_option
@click.option("--endpoint", metavar="URL", help="Poll this endpoint instead of the file's.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--once", is_flag=True, help="Poll once, take the steps that are due, and exit.")
@offline_command
def run(call: Invocation, file: Path, endpoint: str | None, dry_run: bool, once: bool) -> None:
    """Run the agent until it is stopped.

    It polls for events, takes the steps of its file, approves, and undoes the steps when the event is over.
    """
    config = load_config(file)
    if dry_run:
        _print_dry_run(call, config, endpoint, once)
    else:
        _replace_process_with_agent(file, endpoint, once)


def _replace_process_with_agent(file: Path, endpoint: str | None, once: bool) -> None:
    """Exec the agent without the libraries of this command, which would be half of its memory for months."""
    arguments = ["-P", "-m", "forewarn.agent", "--config", str(file)]
    arguments += ["--endpoint", endpoint] if endpoint else []
    arguments += ["--once"] if once else []
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *arguments])


def _print_dry_run(call: Invocation, config: AgentConfig, endpoint: str | None, once: bool) -> None:
    client = Client(endpoint or config.endpoint)
    vm = config.vm or client.name()
    for received in [client.events()] if once else client.documents():
        now = client.date or 0.0
        dry_runs = [dry_run_event(event, config.rules, vm, now) for event in received.events]
        if call.output.as_json:
            call.output.print_json(
                {"vm": vm, "now": time_text(now), "events": [_dry_run_document(each) for each in dry_runs]}
            )
        else:
            _print_dry_runs(call, vm, dry_runs)


@agent.command()
@click.argument("named", type=click.Path(path_type=Path), metavar="[FILE]", required=False)
@_config_option
@offline_command
def check(call: Invocation, named: Path | None, file: Path) -> None:
    """Check the agent's file, and show when its steps would start.

    For each rule, shows its steps with a notice of 15 minutes, 30 seconds and 7 days.
    """
    file = named or file
    config = load_config(file)
    if call.output.as_json:
        call.output.print_json(_plan_document(str(file), config))
    else:
        _print_plan(call, str(file), config)


@agent.command()
@_config_option
@click.option("--at", metavar="ADDRESS:PORT", help="Ask the agent that listens here; needs no file.")
@offline_command
def status(call: Invocation, file: Path, at: str | None) -> None:
    """Show the agent's status and events.

    Asks the running agent, or reads its journal if none is running.
    """
    state = _agent_state(None if at else load_config(file), at)
    if call.output.as_json:
        call.output.print_json(state)
    else:
        _print_agent_state(call, state)


@agent.command()
@click.argument("event", metavar="EVENT")
@_config_option
@offline_command
def explain(call: Invocation, event: str, file: Path) -> None:
    """Explain what the agent did for an event, when and why.

    Reads the agent's journal. EVENT is an event's id, or the first four or more characters of it.
    """
    explanations = _event_explanations(load_config(file), event)
    if call.output.as_json:
        call.output.print_json({"events": explanations})
    else:
        for explanation in explanations:
            _print_explanation(call, explanation)


@agent.command()
@_config_option
@offline_command
def repair(call: Invocation, file: Path) -> None:
    """Repair a damaged journal, and say what it lost.

    Keeps everything that can be read, and the damaged file beside the new one. Stop the agent first. A journal that is
    not damaged is not changed.
    """
    config = load_config(file)
    done = repair_journal(config.journal_path, config.step_folders, read_real_time())
    if call.output.as_json:
        call.output.print_json(_repair_document(done))
    else:
        _print_repair(call, config.journal_path, done)


def _repair_document(done: JournalRepair) -> JsonObject:
    return {
        "repaired": done.damaged_copy is not None,
        "damaged_copy": None if done.damaged_copy is None else str(done.damaged_copy),
        "step_folders": None if done.step_folders is None else str(done.step_folders),
        "kept": list(done.kept),
        "unreadable": list(done.unreadable),
    }


def _print_repair(call: Invocation, journal: Path, done: JournalRepair) -> None:
    if done.damaged_copy is None:
        call.output.print_line(f"{journal} is not damaged: nothing was changed.")
        return
    call.output.print_line(f"{journal} is repaired and has {count_noun(len(done.kept), 'event')}.")
    call.output.print_line(f"The damaged file is {done.damaged_copy}.")
    if done.step_folders is not None:
        call.output.print_line(f"Step folders of lost events are in {done.step_folders}.")
    if not done.unreadable:
        call.output.print_line("Everything was readable.")
    for lost in done.unreadable:
        call.output.print_labelled(bold("unreadable  "), lost)


_AGENT_TIMEOUT_S = 10.0
_MIN_ID_PREFIX = 4


def _agent_state(config: AgentConfig | None, at: str | None) -> JsonObject:
    """The agent's state: from the agent that listens at `at` or as configured, else from its journal."""
    address = at or (config.listen if config else "")
    state = _state_from_agent(address) if address else None
    if state is not None:
        return {"running": True, "from_journal": False, **state}
    if config is None:
        raise Unavailable(f"no agent answers at {address}: start it with `forewarn agent run`, or give its --config")
    return {"running": is_journal_locked(config.journal_path), "from_journal": True, **_state_from_journal(config)}


def _state_from_agent(address: str) -> JsonObject | None:
    """The state that the agent at this address serves; None if nothing listens there."""
    host, port = _parse_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=_AGENT_TIMEOUT_S)  # uses no proxy
    try:
        # The agent shows its state to no other host name, because of web sites; `address` may contain any.
        connection.request("GET", "/state", headers={"Host": "localhost"})
        answer = connection.getresponse()
        state = json.loads(answer.read())
    except (ConnectionError, TimeoutError):
        return None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Rejected(f"the server at {address} is not an agent ({error}): check `listen` in its file") from error
    finally:
        connection.close()
    if answer.status != 200 or not isinstance(state, dict) or "in_maintenance" not in state:
        raise Rejected(f"the server at {address} is not an agent: check `listen` in its file")
    return state


def _parse_address(text: str) -> tuple[str, int]:
    try:
        return parse_listen_address(text)
    except Rejected:
        raise Rejected(f"{text!r} is not an address: give it as {DEFAULT_LISTEN_ADDRESS}") from None


def _state_from_journal(config: AgentConfig) -> JsonObject:
    journal = AgentJournal(config.journal_path, readonly=True, config_file=config.file)
    try:
        return state_view(
            AgentSnapshot(
                open_records=journal.open_records,
                rules={rule.name: rule for rule in config.rules},
                steps=config.steps,
                vm=config.vm,
                now=read_real_time(),
                boot_id=read_boot_id(),
            )
        )
    finally:
        journal.close()


def _event_explanations(config: AgentConfig, id_prefix: str) -> list[JsonObject]:
    rules = {rule.name: rule for rule in config.rules}
    is_running = is_journal_locked(config.journal_path)
    records = _find_records(config, id_prefix)
    return [_explanation_view(explain_event(record, rules, is_agent_running=is_running)) for record in records]


def _explanation_view(explanation: AgentExplanation) -> JsonObject:
    lines = [{**asdict(line), "at": time_text(line.at)} for line in explanation.lines]
    return {**asdict(explanation), "lines": lines}


def _find_records(config: AgentConfig, id_prefix: str) -> tuple[EventRecord, ...]:
    if len(id_prefix) < _MIN_ID_PREFIX:
        raise Rejected(f"{id_prefix!r} is too short for an event's id: give at least {_MIN_ID_PREFIX} characters")
    journal = AgentJournal(config.journal_path, readonly=True, config_file=config.file)
    try:
        found = journal.find_by_prefix(id_prefix)
        ids = list(dict.fromkeys(record.key.partition("#")[0] for record in found))
        latest = [record.key for record in journal.records(3)]
    finally:
        journal.close()
    if not found:
        seen = f"the latest are {', '.join(latest)}" if latest else "the agent has seen none yet"
        raise NotFound(f"no event of the journal begins with {id_prefix!r}: {seen}")
    if len(ids) > 1:
        raise Rejected(f"{id_prefix!r} matches {len(ids)} events, {', '.join(ids)}: give more characters")
    return found


# `agent check` shows when steps start with these notices:
SAMPLE_NOTICES_S = {"15 minutes": 900.0, "30 seconds": 30.0, "7 days": 604_800.0}
_PLAN_HEADERS = ("step", "use", "budget", *SAMPLE_NOTICES_S)
_EVENT_HEADERS = ("event", "kind", "status", "VMs", "not before", "rule", "now")


def _plan_document(file: str, config: AgentConfig) -> JsonObject:
    return {"file": file, "steps": list(config.steps), "rules": [_rule_document(rule) for rule in config.rules]}


def _rule_document(rule: RuleConfig) -> JsonObject:
    rows = step_plan_table(rule, tuple(SAMPLE_NOTICES_S.values()))
    steps = [
        {
            "name": step.name,
            "use": step.use,
            "budget_s": step.budget_s,
            "begins": dict(zip(SAMPLE_NOTICES_S, row, strict=True)),
        }
        for step, row in rows
    ]
    return {"name": rule.name, "for": _rule_conditions(rule), "approve": rule.approve.when.value, "steps": steps}


def _print_plan(call: Invocation, file: str, config: AgentConfig) -> None:
    call.output.print_line(
        f"{file} is valid: {count_noun(len(config.rules), 'rule')}, {count_noun(len(config.steps), 'step')}."
    )
    for rule in config.rules:
        call.output.print_line()
        call.output.print_line(bold(rule.name), dim(f"  {_rule_conditions(rule)}; approved: {rule.approve.when.value}"))
        rows = step_plan_table(rule, tuple(SAMPLE_NOTICES_S.values()))
        if rows:
            call.output.print_table(
                _PLAN_HEADERS, ([s.name, s.use, format_duration(s.budget_s), *row] for s, row in rows)
            )
        else:
            call.output.print_line("no steps: nothing is done for the event")


def _rule_conditions(rule: RuleConfig) -> str:
    kinds = ", ".join(sorted(rule.kinds)) or "any event"
    sources = f" by {', '.join(sorted(rule.sources))}" if rule.sources else ""
    vms = "" if rule.vms == OWN_VM else f" of {rule.vms}"
    return f"{kinds}{sources}{vms}{''.join(_rule_bounds(rule))}"


def _rule_bounds(rule: RuleConfig) -> Iterator[str]:
    for text, bound in (
        (", taking {} or more", rule.min_duration_s),
        (", taking {} or less", rule.max_duration_s),
        (", {} or more ahead", rule.min_left_s),
        (", {} or less ahead", rule.max_left_s),
    ):
        if bound is not None:
            yield text.format(format_duration(bound))


def _dry_run_document(dry_run: DryRun) -> JsonObject:
    return {**asdict(dry_run), "event": dry_run.event.id, "kind": dry_run.event.kind}


def _print_dry_runs(call: Invocation, vm: str, dry_runs: Sequence[DryRun]) -> None:
    if not dry_runs:
        call.output.print_line(f"No event is pending for {vm}: nothing would be done.")
    for dry_run in dry_runs:
        call.output.print_line(bold(dry_run.title))
        for text in (*dry_run.steps, *([dry_run.approval] if dry_run.approval else [])):
            call.output.print_labelled(join_text("  "), text)


def _print_agent_state(call: Invocation, state: JsonObject) -> None:
    call.output.print_facts(_state_facts(state))
    if not state["events"]:
        call.output.print_line("No event is in progress.")
        return
    call.output.print_line()
    call.output.print_table(_EVENT_HEADERS, [_agent_event_row(call, event, state) for event in state["events"]])


def _state_facts(state: JsonObject) -> Iterator[tuple[str, Cell]]:
    yield "agent", _running_text(state)
    for name in ("vm", "endpoint"):
        if state.get(name):
            yield name, str(state[name])
    if state.get("health"):
        yield "health", _health_text(state["health"])
    holds = [f"held by {hold['step']} for a {hold['kind']}" for hold in state["holds"]]
    yield "ready", "yes" if state["ready"] else f"no: {join_names(holds)}"
    yield "in maintenance", "yes" if state["in_maintenance"] else "no"
    for problem in state.get("problems", []):
        yield "problem", str(problem)


def _running_text(state: JsonObject) -> Cell:
    if not state["running"]:
        return join_text(state_text("stopped"), ", according to its journal")
    if state["from_journal"]:
        return join_text(state_text("running"), ", but its HTTP pages do not answer; according to its journal")
    return state_text("running")


def _health_text(health: JsonObject) -> str:
    if health["text"]:
        return str(health["text"])
    return f"ok, answered {format_duration(health['silent_s'] or 0)} ago"


def _agent_event_row(call: Invocation, event: JsonObject, state: JsonObject) -> list[Cell]:
    return [
        bold(call.output.short_id(event["key"])),
        event["kind"],
        state_text(event["outcome"] or event["status"]),
        join_names(event["vms"]),
        describe_time(event["not_before"], state["now"]),
        event["rule"] or "none",
        _current_activity(event, state["now"], is_agent_running=state["running"]),
    ]


def _current_activity(event: JsonObject, now: float, *, is_agent_running: bool) -> str:
    runs = [(step["name"], phase, step[phase]) for step in event["steps"] for phase in ("do", "undo") if step[phase]]
    begun = [_step_phase_name(name, phase) for name, phase, run in runs if run["state"] == "begun"]
    if begun:
        return f"{join_names(begun)} {'running' if is_agent_running else 'interrupted'}"
    if event["waits_for"]:
        until = event["waits_until"]
        return str(event["waits_for"]) + ("" if until is None else f" ({relative_time(until, now)})")
    return join_names([f"{_step_phase_name(name, phase)} {run['state']}" for name, phase, run in runs])


def _step_phase_name(step: str, phase: str) -> str:
    return step if phase == "do" else f"undo of {step}"


def _print_explanation(call: Invocation, explanation: JsonObject) -> None:
    call.output.print_line(bold(explanation["title"]))
    lines: list[dict[str, Any]] = list(explanation["lines"])
    times = clock_times((line["at"] for line in lines), lines[-1]["at"] if lines else 0.0)
    for line, time in zip(lines, times, strict=True):
        call.output.print_labelled(join_text("  ", dim(time), "  "), line["text"])
        if line["detail"]:
            call.output.print_labelled(join_text(" " * (len(time) + 4)), dim(line["detail"]))
    call.output.print_labelled(bold("now  "), explanation["now"])
