"""The command hypervisor: performs acts with the operator's own commands, one per verb.

A command that began and was not seen to end may have had its effect. With a check command the check decides;
without one the command runs again: at least once, and with a check exactly once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from forewarn.base.duration import exact_duration_text
from forewarn.base.times import LabSeconds
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Rejected, Unavailable
from forewarn.machines.command_run import (
    CommandResult,
    CommandRun,
    CommandRunJournal,
    CommandRunRecord,
    end_orphaned_command,
)
from forewarn.machines.interface import ActDone, ActNotTried, ActUnderWay
from forewarn.machines.moves import MoveHandover, MoveRelease, MoveStep, StepReport, release_of, step_act

log = logging.getLogger(__name__)
PERFORM_WAIT_S = 1.0  # real time: how long one `perform` waits for its command
_RETRY_AFTER_S: LabSeconds = 1.0
_COMMAND_STEPS = (MoveStep.PREPARE, MoveStep.RELEASE, MoveStep.ACTIVATE, MoveStep.UNDO, MoveStep.RETURN)
ANY_VERB = "*"  # the command for verbs that have none of their own
_CHECK_DONE, _CHECK_NOT_DONE = 0, 1  # exit codes of a check; any other: the check does not know


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's command for one verb, such as reboot. In the settings: `[commands.reboot]`."""

    run: tuple[str, ...]  # program and arguments; exit code 0 means that the act succeeded
    timeout_s: float = 300  # real time, for `run` and for `check`; after it they are killed
    check: tuple[str, ...] = ()  # whether an earlier run did it: exit code 0 yes, 1 no, else unknown; (): no check
    steps: tuple[MoveStep, ...] = (MoveStep.RELEASE,)  # of a move between host nodes, those that the command performs


def check_commands(commands: Mapping[str, CommandSpec]) -> None:
    """Raise Rejected if a command of the settings is wrong. Runs nothing, and does not look for the programs."""
    for name, spec in commands.items():
        if name != ANY_VERB and name not in list(Verb):
            raise Rejected(
                f"setting 'commands': verb {name!r} does not exist; choose from {', '.join(Verb)} or {ANY_VERB!r}"
            )
        if not spec.run or not spec.run[0]:
            raise Rejected(f"setting 'commands.{name}.run' is empty: name a program and its arguments")
        if spec.timeout_s <= 0:
            raise Rejected(f"setting 'commands.{name}.timeout_s' is {spec.timeout_s:g}: give more than 0 seconds")
        if MoveStep.RELEASE not in spec.steps or not set(spec.steps) <= set(_COMMAND_STEPS):
            raise Rejected(
                f"setting 'commands.{name}.steps' is {', '.join(spec.steps) or 'empty'}: give release, and any of "
                "prepare, activate, undo and return"
            )


class CommandHypervisor:
    """Performs each act with the operator's command for its verb, and records each run in a journal."""

    # A command that began and was not seen to end runs again, unless its check says that the act was done. `commands`
    # is by verb, with `*` for all other verbs. One `perform` waits at most `perform_wait_s` of real time.

    def __init__(
        self, commands: Mapping[str, CommandSpec], directory: Path, *, perform_wait_s: float = PERFORM_WAIT_S
    ) -> None:
        check_commands(commands)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._commands = commands
        self._directory = directory
        self._perform_wait_s = perform_wait_s
        self._journal = CommandRunJournal(directory / "attempts.db")
        self._tasks: dict[str, asyncio.Task[ActDone]] = {}
        self._unrecorded: set[str] = set()  # acts that are done, but whose outcome the journal could not take yet
        self._is_closed = False

    @property
    def supported_verbs(self) -> frozenset[Verb]:
        return frozenset(verb for verb in Verb if verb in self._commands or ANY_VERB in self._commands)

    @property
    def verb_setting(self) -> str:
        return "[commands.{verb}]"

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        return await self._perform(act, "", now)

    async def perform_step(self, act: Act, step: MoveStep, given: MoveHandover, now: float) -> StepReport:
        """Perform this step of a move to or from another host, if the act's command has the step."""
        # Steps that the command does not have succeed at once, except RETURN, which fails because the VM may be on the
        # destination. By default a command performs a whole move in RELEASE, on the source; if the source was fenced,
        # in ACTIVATE, on the destination.
        done = StepReport.of(ActDone(True))
        match step:
            case MoveStep.RELEASE | MoveStep.WITHDRAW if (
                self._journal.find(step_act(act, MoveStep.RETURN).id) is not None
            ):
                returned = await self._return(act, now)
                if not isinstance(returned, ActDone):
                    return StepReport.of(returned)
                note = f"{act.name} was taken back" if returned.ok else returned.note
                return StepReport.of(ActDone(step is MoveStep.WITHDRAW, note))
            case MoveStep.RETURN:
                return StepReport.of(await self._return(act, now))
            case MoveStep.WITHDRAW:
                return await self._withdraw(act, now)
            case MoveStep.FENCE:
                return StepReport.of(ActDone(False, "commands fence no hosts"))
            case MoveStep.ACTIVATE if self._journal.find(step_act(act, MoveStep.UNDO).id) is not None:
                return StepReport.of(ActDone(False, f"what {act.to_host} had prepared for {act.name} was undone"))
            case MoveStep.UNDO if self._journal.find(step_act(act, MoveStep.ACTIVATE).id) is not None:
                return StepReport.of(ActDone(False, f"{act.name} was started on {act.to_host}"))
        spec = self._commands.get(act.verb) or self._commands.get(ANY_VERB)
        is_whole_move_here = step is MoveStep.ACTIVATE and given.release is MoveRelease.FENCED
        if spec is not None and step not in spec.steps and not is_whole_move_here:
            if step in _COMMAND_STEPS:
                self._journal.begin(step_act(act, step).id, now)
                self._journal.end(step_act(act, step).id, ok=True, note="")
            return done
        return self._release_report(act, step, await self._perform(step_act(act, step), step, now))

    async def _withdraw(self, act: Act, now: float) -> StepReport:
        """Refuse the release from now on, unless it was given already; wait for one that is under way."""
        release = step_act(act, MoveStep.RELEASE)
        if self._journal.find(release.id) is None:
            self._journal.fail_without_run(release.id, now, note=f"{act.name} was not released")
            return StepReport.of(ActDone(True))
        answer = await self._perform(release, MoveStep.RELEASE, now)
        if isinstance(answer, ActDone) and not answer.ok:
            return StepReport.of(ActDone(True))
        return self._release_report(act, MoveStep.RELEASE, answer)

    async def _return(self, act: Act, now: float) -> ActDone | ActUnderWay:
        """Take the VM back with the act's command, or fail if that has no such step; durable."""
        back = step_act(act, MoveStep.RETURN)
        spec = self._commands.get(act.verb) or self._commands.get(ANY_VERB)
        if spec is not None and MoveStep.RETURN in spec.steps:
            return await self._perform(back, MoveStep.RETURN, now)
        if (done := _recorded_outcome(self._journal.find(back.id))) is not None:
            return done
        note = (
            f"no command has taken {act.name} back, and it may be on {act.to_host}: bring it back to {act.from_host}, "
            f"or start it there once it certainly does not run on {act.to_host}"
        )
        self._journal.fail_without_run(back.id, now, note=note)
        return ActDone(False, note)

    def _release_report(self, act: Act, step: MoveStep, answer: ActDone | ActUnderWay) -> StepReport:
        is_released = step is MoveStep.RELEASE and isinstance(answer, ActDone) and answer.ok
        return StepReport.of(answer, MoveHandover(release=release_of(act)) if is_released else MoveHandover())

    async def _perform(self, act: Act, step: str, now: float) -> ActDone | ActUnderWay:
        task = self._tasks.get(act.id)
        if task is None:
            if (done := _recorded_outcome(self._journal.find(act.id))) is not None:
                return done
            spec = self._commands.get(act.verb) or self._commands.get(ANY_VERB)
            if spec is None:
                note = f"no command is set for {act.verb}: add [commands.{act.verb}] with run = […] to the settings"
                self._journal.fail_without_run(act.id, now, note=note)
                return ActDone(ok=False, note=note)
            task = self._tasks[act.id] = asyncio.create_task(self._run_act(act, step, spec, now))
        await asyncio.wait({task}, timeout=self._perform_wait_s)
        if not task.done():
            return ActUnderWay(at=now + _RETRY_AFTER_S)
        if act.id in self._unrecorded:
            self._record_outcome(act, task.result())  # until it succeeds, the task keeps the outcome
        self._tasks.pop(act.id, None)
        return task.result()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._journal.close()

    async def _run_act(self, act: Act, step: str, spec: CommandSpec, now: float) -> ActDone:
        """Perform the act, and try to record its outcome; see `_unrecorded`."""
        done = await self._outcome_of_act(act, step, spec, now)
        self._unrecorded.add(act.id)
        try:
            self._record_outcome(act, done)
        except ActNotTried as error:
            log.warning("the outcome of %s of VM %s cannot be recorded yet: %s", act.verb, act.name, error)
        return done

    async def _outcome_of_act(self, act: Act, step: str, spec: CommandSpec, now: float) -> ActDone:
        before = self._journal.find(act.id)
        if before is not None:
            if not await end_orphaned_command(before, self._output_file(act, "run"), within_s=spec.timeout_s):
                raise Unavailable(
                    f"the command for {act.verb} of VM {act.name!r} that an earlier service started does not end: "
                    "end it by hand"
                )
            self._output_file(act, "run").unlink(missing_ok=True)
            if spec.check and await self._is_already_done(act, step, spec):
                return ActDone(ok=True, note=f"{act.verb} was done already, according to {spec.check[0]!r}")
        self._journal.begin(act.id, now)
        try:
            command_run = self._start_command(act, step, spec.run, "run")
        except OSError as error:
            return ActDone(ok=False, note=_start_failure_text(spec.run, error))
        try:
            self._journal.record_process(act.id, command_run.pid, command_run.started)
        except ActNotTried as error:  # the command runs: only its outcome matters now
            log.warning("the process of %s of VM %s cannot be recorded: %s", act.verb, act.name, error)
        result = await command_run.wait(within_s=spec.timeout_s)
        is_repeated = before is not None and not spec.check
        return ActDone(ok=result.code == 0, note=_outcome_text(spec, result, is_repeated=is_repeated))

    async def _is_already_done(self, act: Act, step: str, spec: CommandSpec) -> bool:
        try:
            result = await self._start_command(act, step, spec.check, "check").wait(within_s=spec.timeout_s)
        except OSError as error:
            raise Unavailable(_start_failure_text(spec.check, error)) from error
        if result.code not in (_CHECK_DONE, _CHECK_NOT_DONE):
            raise Unavailable(
                f"it is unknown whether {act.verb} of VM {act.name!r} was done: {spec.check[0]!r} "
                f"{_exit_text(result, spec)}"
                f"{_output_text(result)}"
            )
        return result.code == _CHECK_DONE

    def _start_command(self, act: Act, step: str, argv: tuple[str, ...], what: str) -> CommandRun:
        facts = command_input(act, step)
        environment = os.environ | {f"FOREWARN_{name.upper()}": text for name, text in facts.items()}
        stdin = msgspec.json.encode(facts) + b"\n"
        return CommandRun.start(argv, environment=environment, stdin=stdin, output=self._output_file(act, what))

    def _output_file(self, act: Act, what: str) -> Path:
        return self._directory / f"{hashlib.sha256(act.id.encode()).hexdigest()[:16]}.{what}"

    def _record_outcome(self, act: Act, done: ActDone) -> None:
        self._journal.end(act.id, ok=done.ok, note=done.note)
        self._output_file(act, "run").unlink(missing_ok=True)  # one that an earlier service left
        self._unrecorded.discard(act.id)


def command_input(act: Act, step: str = "") -> dict[str, str]:
    """Return what a command is told about its act: FOREWARN_KEY in its environment, and JSON on stdin."""
    return {
        "act": act.id,
        "vm": act.name,
        "key": act.vm,
        "verb": act.verb,
        "kind": act.verb.rules.announced_as or "",
        "event": act.event_id,
        "host": act.from_host,
        "to_host": act.to_host,
        "duration": str(act.duration_s),
        "step": step,
    }


def _recorded_outcome(record: CommandRunRecord | None) -> ActDone | None:
    return ActDone(ok=record.ok, note=record.note) if record is not None and record.ok is not None else None


def _start_failure_text(argv: tuple[str, ...], error: OSError) -> str:
    return f"command {argv[0]!r} cannot be started: {error.strerror}"


def _outcome_text(spec: CommandSpec, result: CommandResult, *, is_repeated: bool) -> str:
    repeated = "; it had started before the service was interrupted, and ran again because it has no check"
    return f"{spec.run[0]!r} {_exit_text(result, spec)}{repeated if is_repeated else ''}{_output_text(result)}"


def _exit_text(result: CommandResult, spec: CommandSpec) -> str:
    if result.code is None:
        return f"took longer than {exact_duration_text(spec.timeout_s)} and was ended"
    return f"was ended by signal {-result.code}" if result.code < 0 else f"ended with code {result.code}"


def _output_text(result: CommandResult) -> str:
    return f": {result.output}" if result.output else ""
