"""The command hypervisor: acts are done by commands of the operator's own, one per verb.

A command that was begun and not seen to end may have had its effect. With a check command we ask; without one it is
run again: at least once, where a check makes it exactly once.
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
from forewarn.hypervisor.attempt import Attempt, Attempts
from forewarn.hypervisor.errand import Errand, Ran, end_left_over
from forewarn.hypervisor.seam import Done, Later
from forewarn.protocol.document import Kind

PATIENCE_S = 1.0  # real time: how long one perform waits for its command
_AGAIN_S = 1.0  # lab time
ANY = "*"
_DONE, _NOT_DONE = 0, 1  # what a check's exit code says; any other: it cannot tell
KINDS: dict[Verb, Kind] = {
    Verb.FREEZE: Kind.FREEZE,
    Verb.MIGRATE: Kind.FREEZE,
    Verb.REBOOT: Kind.REBOOT,
    Verb.REDEPLOY: Kind.REDEPLOY,
    Verb.EVICT: Kind.PREEMPT,
    Verb.DELETE: Kind.TERMINATE,
}


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one verb is done. In settings: `[commands.reboot]`."""

    run: tuple[str, ...]
    timeout_s: float = 300
    check: tuple[str, ...] = ()  # exit code 0: the act is done already, 1: it is not


def must_make_sense(commands: Mapping[str, Spec]) -> None:
    for name, spec in commands.items():
        if name != ANY and name not in list(Verb):
            raise Rejected(f"setting 'commands': there is no verb {name!r}; choose from {', '.join(Verb)} or {ANY!r}")
        if not spec.run or not spec.run[0]:
            raise Rejected(f"setting 'commands.{name}.run' is empty: name a program and its arguments")
        if spec.timeout_s <= 0:
            raise Rejected(f"setting 'commands.{name}.timeout_s' is {spec.timeout_s:g}: give more than 0 seconds")


class Command:
    """`directory` is ours: it holds the ledger of attempts, and what commands write until they end."""

    def __init__(self, commands: Mapping[str, Spec], directory: Path, *, patience_s: float = PATIENCE_S) -> None:
        must_make_sense(commands)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._commands = commands
        self._directory = directory
        self._patience_s = patience_s
        self._attempts = Attempts(directory / "attempts.db")
        self._tasks: dict[str, asyncio.Task[Done]] = {}
        self._is_closed = False

    async def perform(self, act: Act, now: float) -> Done | Later:
        spec = self._commands.get(act.verb) or self._commands.get(ANY)
        if spec is None:
            note = f"there is no command for {act.verb}: add [commands.{act.verb}] with run = […] to the settings"
            return Done(ok=False, note=note)
        task = self._tasks.get(act.id)
        if task is None:
            if (done := _known(self._attempts.find(act.id))) is not None:
                return done
            task = self._tasks[act.id] = asyncio.create_task(self._carry_out(act, spec, now))
        await asyncio.wait({task}, timeout=self._patience_s)
        if not task.done():
            return Later(at=now + _AGAIN_S)
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
        self._attempts.close()

    async def _carry_out(self, act: Act, spec: Spec, now: float) -> Done:
        before = self._attempts.find(act.id)
        if before is not None:
            await end_left_over(before.pid, before.started, within_s=spec.timeout_s)
            if spec.check and await self._is_done(act, spec):
                return self._conclude(act, ok=True, note=f"{act.verb} was done already, says {spec.check[0]!r}")
        self._attempts.begin(act.id, now)
        try:
            errand = self._send(act, spec.run, "run")
        except OSError as error:
            return self._conclude(act, ok=False, note=_not_started(spec.run, error))
        self._attempts.run_by(act.id, errand.pid, errand.started)
        ran = await errand.come_back(within_s=spec.timeout_s)
        again = before is not None and not spec.check
        return self._conclude(act, ok=ran.code == 0, note=_note(spec, ran, is_repeated=again))

    async def _is_done(self, act: Act, spec: Spec) -> bool:
        try:
            ran = await self._send(act, spec.check, "check").come_back(within_s=spec.timeout_s)
        except OSError as error:
            raise Unavailable(_not_started(spec.check, error)) from error
        if ran.code not in (_DONE, _NOT_DONE):
            raise Unavailable(
                f"whether {act.verb} of VM {act.name!r} was done is not known: {spec.check[0]!r} {_how(ran, spec)}"
                f"{_saying(ran)}"
            )
        return ran.code == _DONE

    def _send(self, act: Act, argv: tuple[str, ...], what: str) -> Errand:
        facts = facts_of(act)
        environment = os.environ | {f"FOREWARN_{name.upper()}": text for name, text in facts.items()}
        name = f"{hashlib.sha256(act.id.encode()).hexdigest()[:16]}.{what}"
        given = msgspec.json.encode(facts) + b"\n"
        return Errand.send(argv, environment=environment, given=given, output=self._directory / name)

    def _conclude(self, act: Act, *, ok: bool, note: str) -> Done:
        self._attempts.end(act.id, ok=ok, note=note)
        return Done(ok=ok, note=note)


def facts_of(act: Act) -> dict[str, str]:
    """What a command is told: each in its environment, and all of it as JSON on its standard input."""
    return {
        "act": act.id,
        "vm": act.name,
        "key": act.vm,
        "verb": act.verb,
        "kind": KINDS.get(act.verb, ""),
        "event": act.event_id,
        "host": act.from_host,
        "to_host": act.to_host,
        "duration": str(act.duration_s),
    }


def _known(attempt: Attempt | None) -> Done | None:
    return Done(ok=attempt.ok, note=attempt.note) if attempt is not None and attempt.ok is not None else None


def _not_started(argv: tuple[str, ...], error: OSError) -> str:
    return f"command {argv[0]!r} cannot be started: {error.strerror}"


def _note(spec: Spec, ran: Ran, *, is_repeated: bool) -> str:
    again = "; it had begun before the service was interrupted, and was run again for want of a check"
    return f"{spec.run[0]!r} {_how(ran, spec)}{again if is_repeated else ''}{_saying(ran)}"


def _how(ran: Ran, spec: Spec) -> str:
    if ran.code is None:
        return f"took longer than {spec.timeout_s:g} s and was ended"
    return f"was ended by signal {-ran.code}" if ran.code < 0 else f"ended with code {ran.code}"


def _saying(ran: Ran) -> str:
    return f": {ran.output}" if ran.output else ""
