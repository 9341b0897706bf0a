"""The durable ledger of the simulated hypervisor: effects on VMs, and outcomes without one, by act id.

Writes requested at the same time share one transaction, in a thread. Other calls block. The lock lets tests read
while a lab runs in another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from forewarn.base.times import LabSeconds, LabTime
from forewarn.core.cause import Verb
from forewarn.machines.interface import ActDone, ActNotTried
from forewarn.machines.journal import IN_MEMORY, SqliteJournal

_SCHEMA = (
    "CREATE TABLE act (act_id TEXT PRIMARY KEY, performs INTEGER NOT NULL DEFAULT 0,"
    " repeats INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID",
    "CREATE TABLE effect (seq INTEGER PRIMARY KEY, act_id TEXT NOT NULL UNIQUE, vm TEXT NOT NULL,"
    " verb TEXT NOT NULL, event_id TEXT NOT NULL, begun_at REAL NOT NULL, ends_at REAL NOT NULL,"
    " ended INTEGER NOT NULL, from_host TEXT NOT NULL, to_host TEXT NOT NULL)",
    "CREATE INDEX effect_of_vm ON effect (vm)",
    "CREATE TABLE outcome (seq INTEGER PRIMARY KEY, act_id TEXT NOT NULL UNIQUE, at REAL NOT NULL,"  # without effect
    " ok INTEGER NOT NULL, note TEXT NOT NULL)",
)
_EFFECT_COLUMNS = "act_id, vm, verb, event_id, begun_at, ends_at, ended, from_host, to_host"
_SELECT_EFFECTS = f"SELECT {_EFFECT_COLUMNS}, coalesce(performs, 0) FROM effect LEFT JOIN act USING (act_id)"

_MAX_EFFECTS = 100_000  # more are kept only while they are young; likewise outcomes without an effect
_MIN_AGE_S: LabSeconds = 24 * 3600.0
_PRUNE_INTERVAL = 1000  # effects, or outcomes without one

T = TypeVar("T")
_WriteFunction = Callable[[], Any]
_WriteOutcome = tuple[Any, Exception | None]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one act on one VM; `ended` stays False until a perform at `ends_at` or later sees the end."""

    act_id: str  # of the act, or `ACT/STEP` for a step of a move
    vm: str  # the VM's key
    verb: Verb  # of the act
    event_id: str  # of the act's event
    begun_at: LabTime  # of the first perform
    ends_at: LabTime  # planned when it began
    ended: bool = False  # whether a perform at `ends_at` or later has seen its end
    from_host: str = ""  # where the VM was when it began; "": on no host
    to_host: str = ""  # where it brings the VM; "": it does not move
    performs: int = 0  # how often `perform` was called for this act id, or a release performed; 0 for an activation


class VmHistory(msgspec.Struct, frozen=True, kw_only=True):
    """How often a simulated VM booted and where it is, from the effects that ended."""

    boots: int = 0  # by effects of reboots, redeployments (also of a release alone), starts and reimages
    host: str = ""  # where the effects of any verb have left it; "": on no host, or unknown


class EffectLedger(SqliteJournal):
    """The simulated hypervisor's record of effects on VMs, at most one per act id.

    It keeps at least the newest 100,000 ended entries and those of the last day of lab time; an act whose effect was
    deleted can have one again.
    """

    title = "ledger"
    schema = _SCHEMA
    identity = (0x66776C67, 1)  # "fwlg"

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self._queued_writes: list[tuple[_WriteFunction, asyncio.Future[Any]]] = []
        self._commit_task: asyncio.Task[None] | None = None

    async def write_in_group(self, write: Callable[[], T]) -> T:
        """Run `write` in a transaction, and return its result once that is durable.

        Concurrent calls share a commit. `write` may run in another thread, and again if another call causes a rollback,
        so it must change only the ledger. If this call is cancelled, `write` may still take effect.
        """
        if self._name == IN_MEMORY:
            with self.transaction():
                return write()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queued_writes.append((write, future))
        if self._commit_task is None:
            self._commit_task = asyncio.create_task(self._commit_groups())
        return await future

    async def wait_until_written(self) -> None:
        """Wait until all calls of `write_in_group` so far have been committed, or have failed; raises nothing."""
        if self._commit_task is not None:
            await self._commit_task

    async def _commit_groups(self) -> None:
        try:
            while self._queued_writes:
                group, self._queued_writes = self._queued_writes, []
                outcomes = await asyncio.to_thread(self._run_writes, [write for write, _ in group])
                for (_, future), outcome in zip(group, outcomes, strict=True):
                    _resolve_future(future, outcome)
        finally:
            self._commit_task = None

    def _run_writes(self, writes: Sequence[_WriteFunction]) -> list[_WriteOutcome]:
        try:
            with self.transaction():
                return [(write(), None) for write in writes]
        except ActNotTried as error:
            return [(None, error) for _ in writes]
        except Exception as error:
            if len(writes) == 1:
                return [(None, error)]
        return [self._run_writes([write])[0] for write in writes]

    def count_perform(self, act_id: str) -> int:
        """Count one `perform` of this act, and return how many there were, this one included."""
        rows = self._execute(
            "INSERT INTO act (act_id, performs) VALUES (?, 1)"
            " ON CONFLICT DO UPDATE SET performs = performs + 1 RETURNING performs",
            act_id,
        )
        return int(rows[0][0])

    def record_effect(self, effect: Effect) -> bool:
        """Record an effect and return True; if its act already has one, count a repeat and return False."""
        values = [getattr(effect, name) for name in _EFFECT_COLUMNS.split(", ")]
        placeholders = ", ".join("?" * len(values))
        insert = f"INSERT INTO effect ({_EFFECT_COLUMNS}) VALUES ({placeholders}) ON CONFLICT DO NOTHING RETURNING seq"
        if rows := self._execute(insert, *values):
            if rows[0][0] % _PRUNE_INTERVAL == 0:
                self._prune(before=effect.begun_at - _MIN_AGE_S, up_to_seq=rows[0][0] - _MAX_EFFECTS)
            return True
        self._execute(
            "INSERT INTO act (act_id, repeats) VALUES (?, 1) ON CONFLICT DO UPDATE SET repeats = repeats + 1",
            effect.act_id,
        )
        return False

    def _prune(self, *, before: float, up_to_seq: int) -> None:
        """Delete the effects up to this number that ended before this lab time: the store has their outcomes."""
        old = "FROM effect WHERE seq <= ? AND ended = 1 AND ends_at < ?"
        self._execute(f"DELETE FROM act WHERE act_id IN (SELECT act_id {old})", up_to_seq, before)
        self._execute(f"DELETE {old}", up_to_seq, before)

    def record_outcome(self, act_id: str, done: ActDone, at: float) -> None:
        """Record how an act ended without an effect at lab time `at`; its first outcome stays."""
        insert = "INSERT INTO outcome (act_id, at, ok, note) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING seq"
        rows = self._execute(insert, act_id, at, done.ok, done.note)
        if rows and rows[0][0] % _PRUNE_INTERVAL == 0:
            old, limits = "FROM outcome WHERE seq <= ? AND at < ?", (rows[0][0] - _MAX_EFFECTS, at - _MIN_AGE_S)
            self._execute(f"DELETE FROM act WHERE act_id IN (SELECT act_id {old})", *limits)
            self._execute(f"DELETE {old}", *limits)

    def find_outcome(self, act_id: str) -> ActDone | None:
        """Return how this act ended without an effect; None if it had an effect, or is not known."""
        rows = self._execute("SELECT ok, note FROM outcome WHERE act_id = ?", act_id)
        return ActDone(ok=bool(rows[0][0]), note=rows[0][1]) if rows else None

    def mark_ended(self, act_id: str) -> None:
        """Record that the effect of this act has ended; does nothing if the act has none."""
        self._execute("UPDATE effect SET ended = 1 WHERE act_id = ?", act_id)

    def find(self, act_id: str) -> Effect | None:
        rows = self._execute(f"{_SELECT_EFFECTS} WHERE act_id = ?", act_id)
        return _effect_from_row(rows[0]) if rows else None

    def effects(self, vm: str | None = None) -> list[Effect]:
        """Return all effects in the order they began, ended or not, or only those on `vm` (a key)."""
        return [
            _effect_from_row(row)
            for row in self._execute(f"{_SELECT_EFFECTS} WHERE ? IS NULL OR vm = ? ORDER BY seq", vm, vm)
        ]

    def vm_history(self, vm: str) -> VmHistory:
        """Return how often this VM (by key) booted, and the host it is on, from the effects that ended."""
        ended = sorted((e for e in self.effects(vm) if e.ended), key=lambda e: e.ends_at)
        host = ""
        for effect in ended:
            host = "" if effect.verb.rules.leaves_host else effect.to_host or effect.from_host or host
        return VmHistory(boots=sum(e.verb.rules.boots for e in ended), host=host)

    @property
    def repeated_effects(self) -> int:
        """How often `record_effect` refused a second effect of an act: 0 unless a hypervisor has a bug."""
        return int(self._execute("SELECT coalesce(sum(repeats), 0) FROM act")[0][0])


def _resolve_future(future: asyncio.Future[Any], outcome: _WriteOutcome) -> None:
    result, error = outcome
    if future.done():
        return  # the caller was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _effect_from_row(row: tuple[Any, ...]) -> Effect:
    return msgspec.convert(dict(zip(Effect.__struct_fields__, row, strict=True)), Effect, strict=False)
