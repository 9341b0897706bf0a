"""A mark beside a SQLite store that shows, at the next start, whether confirmed writes are missing.

The danger. A commit is in the log of SQLite (`-wal`) until a checkpoint copies it into the database. SQLite checks each
frame of the log, and takes the first wrong one for the end of it: after a crash that is the right thing. But so a
flipped bit, a log that was cut short and one that somebody deleted all look like a crash before these commits. The
database is intact, only older; nothing is reported, and VMs have seen what the store no longer knows. The log cannot
tell what it lost. Something outside of it must know how far it was.

The invariant. Every group of writes adds 1 to a number in the database, in its own transaction. `forewarn.db.mark` has
the highest number that was committed. The order is COMMIT (synced), then the mark (written, not synced), then the
answers to the callers. So, as long as the kernel lives,

    confirmed <= mark <= committed,

and a start that finds a lower number in the database than in the mark has lost at least one confirmed write. A mark
before the COMMIT would raise a false alarm after every crash in between; a mark after the answers would miss one.

The price is a row in a page that a commit with a history entry writes anyway, and one pwrite of 74 bytes. There is no
sync for each commit: the mark is synced when the store is opened (state `open`) and closed (state `closed`, after
SQLite has removed its log); in between the kernel writes it within about half a minute.

What each end of a run leaves behind, and what the next start makes of it:

- A clean stop: `closed`, and the number that the database has. Exact, wherever the files are carried.
- kill -9, a crash, out of memory: `open`, and the page cache has every pwrite. The mark names the boot of the kernel
  that wrote it; within the same boot it is exact: any lost commit is found, and nothing else is reported.
- Loss of power, or a kernel that crashed: `open`, of another boot. The log was synced, so an honest disk has lost
  nothing. The mark may be half a minute old: it is still never above the commits, so it raises no false alarm, but a
  shorter loss can hide behind it. Two facts help. A store in use has a log, so if there is none, somebody removed it.
  And SQLite writes a transaction only after the one before is synced: a frame of this log (its salts say so) behind a
  commit that SQLite did not accept means that a confirmed commit is damaged. Both count as a loss. Not found: a log
  that ends early, or whose last commit is damaged, within the last half minute before a loss of power.
- A mark that cannot be read: nobody knows, so it counts as a loss. No mark (somebody deleted it) says nothing, and the
  next one is made.
- A database that somebody replaced by hand with an older copy has a lower number: found. `forewarn restore` moves the
  mark aside with the old store, because it has begun a new epoch itself.

A loss is not repaired, since nobody has the lost writes. It is made harmless and loud: in one transaction every scope
gets a new epoch (`forewarn.store.commit_mark`), the reason is saved for the history and `forewarn doctor`, and the
number jumps above the mark. Only then is the mark written. A crash in between does it again, or finds it done. The
digest in each ETag guards VMs even where the loss is not found: what was lost is never answered with 304.

A false alarm costs a new epoch, which only makes clients read their documents again. It can come from a program that
opened a crashed store and removed its log, after a reboot.

A control node's copy of a record has no mark: the record has all of it, and the copy may be deleted at any time.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from forewarn.base.files import sync_to_disk
from forewarn.store import sqlite_file

# Begins a new epoch of every scope, because a store may lack writes that VMs have seen.
#
# A restored backup, commits that PostgreSQL lost and a damaged log of SQLite leave the same danger: the store counts on
# from an older number, and soon shows another document under a number that a VM has seen already. So every scope gets
# an epoch that no ETag had (spec §4.3), and a DocumentIncarnation above all that may have been shown (spec §4.2), for
# clients that compare only that. The lost numbers are not known here. But a document changes less than once a second on
# average, so a number made of the present time is above all of them, even those of an earlier renewal. A scope that is
# disabled begins at 1 when it is enabled, as the contract says.
#
# The renewal is stored with what it changes. The service adds it to the history when it starts, at a time of its clock.

_LOSS_SHOWN_S = 86400.0  # for how long a loss is reported after the new epoch began
RENEWAL_NAME = "epoch-renewal"  # of the saved value that holds the last `EpochRenewal`
_INCARNATIONS_SINCE = 1_577_836_800  # 2020: so incarnations fit in 32 bits, as clients may need, until 2088
_HIGHEST = "SELECT coalesce(max(epoch), 0), coalesce(max(incarnation), 0) FROM scopes"
_RENEW = """
    UPDATE scopes SET epoch = ?, incarnation = CASE WHEN enabled_at IS NULL THEN incarnation ELSE ? END"""
_SAVE = "INSERT INTO saved (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"

# Runs a statement whose parameters are `?`, and returns its rows; in the transaction of the caller.
Execute = Callable[[str, Sequence[Any]], Any]


class EpochRenewal(msgspec.Struct, frozen=True, kw_only=True):
    """The last time that every scope got a new epoch, and why. Stored as JSON."""

    epoch: int  # the epoch of every scope since then
    at: float  # real time
    reason: str  # a clause for people: "the backup FILE was restored"
    is_loss: bool = False  # confirmed writes were lost by a fault; False: somebody gave them up
    is_in_history: bool = False  # the service has added it to the history

    def is_recent_loss(self, now: float) -> bool:
        """Whether to report it as a problem; `now` is real time."""
        return self.is_loss and now < self.at + _LOSS_SHOWN_S


class HighestNumbers(NamedTuple):
    """The highest epoch and incarnation that some store has shown; a new epoch must be above them."""

    epoch: int = 0
    incarnation: int = 0


def begin_new_epoch(
    execute: Execute, *, now: float, reason: str, is_loss: bool = False, above: HighestNumbers | None = None
) -> EpochRenewal:
    """Give every scope a new epoch and save why; the caller commits, before VMs are served.

    It is above those in the store and in `above`, and above `now` (real time). `execute` is that of a connection to
    SQLite, or does the same in PostgreSQL.
    """
    known, above = highest_numbers(execute), above or HighestNumbers()
    epoch = max(known.epoch, above.epoch, int(now)) + 1
    incarnation = max(known.incarnation, above.incarnation, int(now) - _INCARNATIONS_SINCE) + 1
    renewal = EpochRenewal(epoch=epoch, at=now, reason=reason, is_loss=is_loss)
    execute(_RENEW, (epoch, incarnation))
    execute(_SAVE, (RENEWAL_NAME, msgspec.json.encode(renewal)))
    return renewal


def highest_numbers(execute: Execute) -> HighestNumbers:
    (row,) = execute(_HIGHEST, ()).fetchall()
    return HighestNumbers(*map(int, row))


def read_renewal(saved: bytes | None) -> EpochRenewal | None:
    """Return the renewal in the value that is saved as RENEWAL_NAME; None if there is none."""
    return None if saved is None else msgspec.json.decode(saved, type=EpochRenewal)


MARK_SUFFIX = ".mark"  # of the file beside the database
# The number is a row of SQLite's own table of counters: no schema changes, and its page is in most commits already.
_READ_NUMBER = "SELECT seq FROM sqlite_sequence WHERE name = 'commits'"
_ADD_ONE = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'commits'"
_SET_NUMBER = "INSERT INTO sqlite_sequence (name, seq) VALUES ('commits', ?)"
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_LINE_BYTES = 74
_LOG_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24


class _Mark(NamedTuple):
    number: int  # the number of the last group of writes that was committed
    is_open: bool  # False: the store was closed, and its log removed
    boot_id: str  # the boot id of the kernel that wrote it; "" if the system has none

    def encode(self) -> bytes:
        text = f"{self.number:020d} {'open  ' if self.is_open else 'closed'} {self.boot_id:36.36}"
        return f"{text} {crc32(text.encode()):08x}\n".encode()


def mark_path(store: Path) -> Path:
    return store.with_name(store.name + MARK_SUFFIX)


def find_lost_writes(store: Path) -> str | None:
    """Return why confirmed writes of this store are missing, as a clause for people; None if none seem to be.

    Changes nothing, and a service may use the store: its mark is never above its number. Call it before the store is
    opened for writing, which removes the log. Raises sqlite3.Error or OSError if the store cannot be read.
    """
    if sqlite_file.is_new_file(store):
        return None
    try:
        mark = _read_mark(store)
    except ValueError:
        return f"the mark {mark_path(store).name!r} is damaged, and nobody knows whether confirmed writes are lost"
    if mark is None:
        return None
    log = store.with_name(store.name + "-wal")
    is_exact = not mark.is_open or (mark.boot_id != "" and mark.boot_id == _boot_id())
    if not is_exact and not log.exists():
        return "the log of the database was lost with the machine's last crash, and perhaps confirmed writes with it"
    with closing(sqlite_file.connect_read_only(store)) as db:
        number = read_number(db)
        if number < mark.number:
            return (
                f"the database has lost confirmed writes: it ends at write {number}, but write {mark.number} was made"
            )
        if not is_exact and _has_damaged_commit(log, _valid_frames(store)):
            return "the log of the database is damaged, and confirmed writes are lost"
    return None


def read_number(db: sqlite3.Connection) -> int:
    """Return the number of the last group of writes in a store; 0 before the first."""
    row = db.execute(_READ_NUMBER).fetchone()
    return int(row[0]) if row else 0


class CommitMark:
    """Numbers the groups of writes of an open store, and keeps the mark beside it; for the writer's thread.

    `begin` makes it. For each group the writer calls `count` in its transaction, and `committed` after the COMMIT. A
    number whose COMMIT failed is never written, not even by `close`: it would look like a lost write.
    """

    def __init__(self, file: int, number: int) -> None:
        self._file, self._number, self._boot_id = file, number, _boot_id()

    @classmethod
    def begin(cls, store: Path, db: sqlite3.Connection, lost: str | None, *, now: float) -> CommitMark:
        """Begin to mark an open store; first give every scope a new epoch if `find_lost_writes` found a loss.

        `db` is the writer's connection, and the log exists. `now` is real time. Durable on return.
        """
        number = read_number(db)
        if lost is not None:
            with suppress(ValueError):
                number = max(number, (_read_mark(store) or _Mark(0, False, "")).number)
            number += 1
            db.execute("BEGIN IMMEDIATE")
            begin_new_epoch(db.execute, now=now, reason=lost, is_loss=True)
            db.execute("DELETE FROM sqlite_sequence WHERE name = 'commits'")
            db.execute(_SET_NUMBER, (number,))
            db.execute("COMMIT")
        mark = cls(os.open(mark_path(store), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), number)
        mark._write(is_open=True, synced=True)
        sync_to_disk(store.parent)  # the names of mark and log, too: a missing log means a loss
        return mark

    def count(self, db: sqlite3.Connection) -> int:
        """Add 1 to the number in the database, in the transaction of a group that has changed something; return it."""
        if db.execute(_ADD_ONE).rowcount == 0:
            db.execute(_SET_NUMBER, (1,))
        return read_number(db)

    def committed(self, number: int) -> None:
        """Write the mark, after the COMMIT and before any caller has its answer. A full disk only lets it lag."""
        self._number = number
        with suppress(OSError):
            self._write(is_open=True)

    def close(self) -> None:
        """Mark the store as closed; call it after SQLite has removed the log. May be called again."""
        if self._file >= 0:
            with suppress(OSError):
                self._write(is_open=False, synced=True)
            os.close(self._file)
            self._file = -1

    def _write(self, *, is_open: bool, synced: bool = False) -> None:
        os.pwrite(self._file, _Mark(self._number, is_open, self._boot_id).encode(), 0)
        if synced:
            os.fsync(self._file)


def _read_mark(store: Path) -> _Mark | None:
    try:
        line = mark_path(store).read_bytes()
    except FileNotFoundError:
        return None
    if len(line) != _LINE_BYTES:
        raise ValueError("a mark has another length")
    mark = _Mark(int(line[:20]), line[21:27] == b"open  ", line[28:64].decode().strip())
    if mark.encode() != line:
        raise ValueError("the checksum of a mark is wrong")
    return mark


def _boot_id() -> str:
    try:
        return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""  # not Linux: no mark of a store in use is exact


def _valid_frames(store: Path) -> int:
    """Return how many frames of the log SQLite has accepted; a connection that has read the store must be open."""
    index = store.with_name(store.name + "-shm").read_bytes()
    return int.from_bytes(index[16:20], sys.byteorder)  # mxFrame


def _has_damaged_commit(log: Path, valid_frames: int) -> bool:
    """Whether frames of this log follow a commit that SQLite does not accept, or the log's header is damaged."""
    # Frames of earlier turns of the log have other salts. SQLite documents the formats of the log and its index.
    with log.open("rb") as file:
        header = file.read(_LOG_HEADER_BYTES)
        if len(header) < _LOG_HEADER_BYTES:
            return False  # no transaction was written yet
        if header[24:] != _header_checksum(header):
            return True
        frame_bytes = _FRAME_HEADER_BYTES + int.from_bytes(header[8:12], "big")
        is_after_commit = False
        for at in range(_LOG_HEADER_BYTES + valid_frames * frame_bytes, log.stat().st_size, frame_bytes):
            file.seek(at)
            frame = file.read(_FRAME_HEADER_BYTES)
            if frame[8:16] == header[16:24]:
                if is_after_commit:
                    return True
                is_after_commit = frame[4:8] != bytes(4)  # the size of the database, which only a commit has
    return False


def _header_checksum(header: bytes) -> bytes:
    words = struct.unpack((">" if header[3] & 1 else "<") + "6I", header[:24])
    first = second = 0
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return struct.pack(">2I", first, second)
