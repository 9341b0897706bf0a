"""Remembers, beside a copy, that its record has lost commits, until its epochs are renewed.

That happens if a standby of PostgreSQL was promoted without the last commits, or a backup was restored. VMs may have
seen more than the record knows, so control nodes report it until `forewarn store renew` gives every scope a new epoch.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

_SUFFIX = ".lost-commits"  # of the file beside the copy
_BEGINNING = "PostgreSQL has lost commits: "


class LostCommits(msgspec.Struct, frozen=True, kw_only=True):
    """The fact that a record (PostgreSQL) has lost a group of writes that somebody knew. Stored as JSON.

    It is remembered in a file beside a copy of the record, until the record's epochs are renewed.
    """

    record_id: str  # of the record
    by: str  # who knew it, for people: "control node c1"
    known: int  # the number of the last group that it knew
    found: int  # the number of the last group that the record had; not below `known`: others, under the same numbers

    @property
    def text(self) -> str:
        """What has happened and what to do, in one sentence for people. The same loss has the same text."""
        is_shorter = self.found < self.known
        place = f"the record ended at group {self.found}" if is_shorter else "the record has a different one"
        return (
            f"{_BEGINNING}{self.by} had group {self.known}, but {place}; VMs may have seen events that it lacks: "
            "stop all control nodes and run `forewarn store renew`"
        )


def tells_of_lost_commits(text: str) -> bool:
    """Return whether a control node's `NodeRow.status` reports lost commits, as `LostCommits.text` does.

    Only the beginning of `text` is compared. A node reports lost commits only if it has no other problem, so it can
    still take over.
    """
    return text.startswith(_BEGINNING)


def write_lost_commits(copy: Path, lost: LostCommits) -> None:
    """Remember a loss in a file beside the copy, unless one of the same record is remembered already.

    `copy` is the path of the copy's SQLite file. The file and its name are durable on return. Raises OSError.
    """
    if read_lost_commits(copy, lost.record_id) is not None:
        return
    draft = copy.with_name(copy.name + _SUFFIX + ".new")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(lost) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(copy.with_name(copy.name + _SUFFIX))
    directory = os.open(copy.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # the name, too: next, the caller deletes the copy that shows the loss
    finally:
        os.close(directory)


def read_lost_commits(copy: Path, record_id: str) -> LostCommits | None:
    """Return the loss that is remembered beside a copy of the record `record_id`; None if there is none.

    `copy` is the path of the copy's SQLite file. Deletes a loss of another record id, because the record has been
    renewed since. A file that cannot be read counts as none; never raises OSError.
    """
    path = copy.with_name(copy.name + _SUFFIX)
    try:
        lost = msgspec.json.decode(path.read_bytes(), type=LostCommits)
    except (OSError, msgspec.DecodeError):
        return None
    if lost.record_id == record_id:
        return lost
    with suppress(OSError):
        path.unlink()
    return None
