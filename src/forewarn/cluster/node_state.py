"""What a host node remembers on its disk: its id, its starts, and the highest terms it obeyed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from forewarn.base.files import sync_to_disk
from forewarn.errors import Rejected

_ID_BYTES = 8


class _StoredState(msgspec.Struct, kw_only=True):
    id: str
    boot: int = 0
    terms: dict[str, int] = {}  # by store tag


class NodeState:
    """The state file of a host node: its id, how often it was started, and the highest terms it obeyed.

    Only one process may use the file at a time, which is not checked here. A node that has lost its file is another
    node: it takes its host over only when the first one is silent, and obeys any term.
    """

    def __init__(self, path: Path, stored: _StoredState) -> None:
        self._path, self._stored = path, stored

    @classmethod
    def load(cls, path: Path) -> NodeState:
        """Read the file, or create it with a new random id, and count this start. A damaged one is never replaced."""
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_StoredState)
        except FileNotFoundError:
            stored = _StoredState(id=secrets.token_hex(_ID_BYTES))
        except (OSError, msgspec.DecodeError) as error:
            raise Rejected(
                f"the state of this node {str(path)!r} cannot be read ({error}): restore the file"
            ) from error
        state = cls(path, stored)
        stored.boot += 1
        try:
            state._write()
        except OSError as error:
            raise Rejected(f"the state of this node in {str(path)!r} cannot be written: {error.strerror}") from error
        return state

    @property
    def id(self) -> str:
        """The id of this host node, random and the same for as long as its state file is kept."""
        return self._stored.id

    @property
    def boot(self) -> int:
        """How often a process of this host node was started, this one included."""
        return self._stored.boot

    def term_of(self, store_tag: str) -> int:
        return self._stored.terms.get(store_tag, 0)

    def store_term(self, store_tag: str, term: int) -> None:
        before = dict(self._stored.terms)
        self._stored.terms[store_tag] = term
        try:
            self._write()
        except OSError:
            self._stored.terms = before
            raise

    def _write(self) -> None:
        draft = self._path.with_suffix(".new")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(self._stored) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        sync_to_disk(self._path.parent)
