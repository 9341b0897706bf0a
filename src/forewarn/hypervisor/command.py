"""The command hypervisor: performs acts with the operator's own commands, one per verb.

A command that began and was not seen to end may have had its effect. With a check command the check decides;
without one the command runs again: at least once, and with a check exactly once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Rejected, Unavailable
from forewarn.hypervisor.command_run import (
    CommandResult,
    CommandRun,
    CommandRunJournal,
    CommandRunRecord,
    end_orphaned_command,
)
from forewarn.hypervisor.interface import ActDone, ActUnderWay
from forewarn.protocol.document import Kind

PERFORM_WAIT_S = 1.0  # real time: how long one perform waits for its command
_RETRY_AFTER_S = 1.0  # lab time
ANY_VERB = "*"
_CHECK_DONE, _CHECK_NOT_DONE = 0, 1  # what a check's exit code says; any other: it cannot tell
EVENT_TYPE_OF_VERB: dict[Verb, Kind] = {
    Verb.FREEZE: Kind.FREEZE,
    Verb.MIGRATE: Kind.FREEZE,
    Verb.REBOOT: Kind.REBOOT,
    Verb.REDEPLOY: Kind.REDEPLOY,
    Verb.EVICT: Kind.PREEMPT,
    Verb.DELETE: Kind.TERMINATE,
}


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one verb is done. In settings: `[commands.reboot]`."""

    run: tuple[str, ...]
    timeout_s: float = 300
    check: tuple[str, ...] = ()  # exit code 0: the act is done already, 1: it is not


def check_commands(commands: Mapping[str, CommandSpec]) -> None:
    for name, spec in commands.items():
        if name != ANY_VERB and name not in list(Verb):
            raise Rejected(
                f"setting 'commands': there is no verb {name!r}; choose from {', '.join(Verb)} or {ANY_VERB!r}"
            )
        if not spec.run or not spec.run[0]:
            raise Rejected(f"setting 'commands.{name}.run' is empty: name a program and its arguments")
        if spec.timeout_s <= 0:
            raise Rejected(f"setting 'commands.{name}.timeout_s' is {spec.timeout_s:g}: give more than 0 seconds")


class CommandHypervisor:
    """`directory` is ours: it holds the ledger of attempts, and what commands write until they end."""

    def __init__(
        self, commands: Mapping[str, CommandSpec], directory: Path, *, patience_s: float = PERFORM_WAIT_S
    ) -> None:
        check_commands(commands)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._commands = commands
        self._directory = directory
        self._perform_wait_s = patience_s
        self._journal = CommandRunJournal(directory / "attempts.db")
        self._tasks: dict[str, asyncio.Task[ActDone]] = {}
        self._is_closed = False

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        spec = self._commands.get(act.verb) or self._commands.get(ANY_VERB)
        if spec is None:
            note = f"there is no command for {act.verb}: add [commands.{act.verb}] with run = […] to the settings"
            return ActDone(ok=False, note=note)
        task = self._tasks.get(act.id)
        if task is None:
            if (done := _recorded_outcome(self._journal.find(act.id))) is not None:
                return done
            task = self._tasks[act.id] = asyncio.create_task(self._run_act(act, spec, now))
        await asyncio.wait({task}, timeout=self._perform_wait_s)
        if not task.done():
            return ActUnderWay(at=now + _RETRY_AFTER_S)
        self._tasks.pop(act.id, None)
        return task.result()

    async def close(self) -> None:
        """Commands that run go on; whoever opens this next finds them."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._journal.close()

    async def _run_act(self, act: Act, spec: CommandSpec, now: float) -> ActDone:
        before = self._journal.find(act.id)
        if before is not None:
            await end_orphaned_command(before.pid, before.started, within_s=spec.timeout_s)
            if spec.check and await self._is_already_done(act, spec):
                return self._record_outcome(act, ok=True, note=f"{act.verb} was done already, says {spec.check[0]!r}")
        self._journal.begin(act.id, now)
        try:
            errand = self._start_command(act, spec.run, "run")
        except OSError as error:
            return self._record_outcome(act, ok=False, note=_start_failure_text(spec.run, error))
        self._journal.record_process(act.id, errand.pid, errand.started)
        ran = await errand.wait(within_s=spec.timeout_s)
        again = before is not None and not spec.check
        return self._record_outcome(act, ok=ran.code == 0, note=_outcome_text(spec, ran, is_repeated=again))

    async def _is_already_done(self, act: Act, spec: CommandSpec) -> bool:
        try:
            ran = await self._start_command(act, spec.check, "check").wait(within_s=spec.timeout_s)
        except OSError as error:
            raise Unavailable(_start_failure_text(spec.check, error)) from error
        if ran.code not in (_CHECK_DONE, _CHECK_NOT_DONE):
            raise Unavailable(
                f"whether {act.verb} of VM {act.name!r} was done is not known: {spec.check[0]!r} "
                f"{_exit_text(ran, spec)}"
                f"{_output_text(ran)}"
            )
        return ran.code == _CHECK_DONE

    def _start_command(self, act: Act, argv: tuple[str, ...], what: str) -> CommandRun:
        facts = command_input(act)
        environment = os.environ | {f"FOREWARN_{name.upper()}": text for name, text in facts.items()}
        name = f"{hashlib.sha256(act.id.encode()).hexdigest()[:16]}.{what}"
        given = msgspec.json.encode(facts) + b"\n"
        return CommandRun.start(argv, environment=environment, given=given, output=self._directory / name)

    def _record_outcome(self, act: Act, *, ok: bool, note: str) -> ActDone:
        self._journal.end(act.id, ok=ok, note=note)
        return ActDone(ok=ok, note=note)


def command_input(act: Act) -> dict[str, str]:
    """What a command is told: each in its environment, and all of it as JSON on its standard input."""
    return {
        "act": act.id,
        "vm": act.name,
        "key": act.vm,
        "verb": act.verb,
        "kind": EVENT_TYPE_OF_VERB.get(act.verb, ""),
        "event": act.event_id,
        "host": act.from_host,
        "to_host": act.to_host,
        "duration": str(act.duration_s),
    }


def _recorded_outcome(attempt: CommandRunRecord | None) -> ActDone | None:
    return ActDone(ok=attempt.ok, note=attempt.note) if attempt is not None and attempt.ok is not None else None


def _start_failure_text(argv: tuple[str, ...], error: OSError) -> str:
    return f"command {argv[0]!r} cannot be started: {error.strerror}"


def _outcome_text(spec: CommandSpec, ran: CommandResult, *, is_repeated: bool) -> str:
    again = "; it had begun before the service was interrupted, and was run again for want of a check"
    return f"{spec.run[0]!r} {_exit_text(ran, spec)}{again if is_repeated else ''}{_output_text(ran)}"


def _exit_text(ran: CommandResult, spec: CommandSpec) -> str:
    if ran.code is None:
        return f"took longer than {spec.timeout_s:g} s and was ended"
    return f"was ended by signal {-ran.code}" if ran.code < 0 else f"ended with code {ran.code}"


def _output_text(ran: CommandResult) -> str:
    return f": {ran.output}" if ran.output else ""
