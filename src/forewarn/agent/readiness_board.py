"""The board: a folder that all VMs share, where each shows that it is alive and for which events it is ready.

    alive/VM         touched every few seconds
    ready/EVENT/VM   made once that VM's steps for the event are done

A heartbeat's age is measured against one's own, made just before: both have the time of the folder's server, so that
the clocks of VMs do not matter. Files are made beside and put in place, so that nobody reads half of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from forewarn.agent.approval import BoardView
from forewarn.agent.rule import plain

BEAT_S = 3.0


class Board:
    """Blocks, as shared folders do: call it in a thread."""

    def __init__(self, folder: Path, vm: str) -> None:
        self._folder, self._name = folder, _quoted(plain(vm))

    def look(self, ready: Iterable[str], open_: Iterable[str]) -> BoardView:
        """Show that we are alive and for which events we are ready, then read what others show of open ones."""
        events, wanted = frozenset(open_), frozenset(ready)
        beat_at = _put(self._folder / "alive" / self._name)
        for id_ in wanted:
            _put(self._place(id_) / self._name)
        for id_ in events - wanted:
            (self._place(id_) / self._name).unlink(missing_ok=True)
        return BoardView(
            ages_s={unquote(name): max(0.0, beat_at - at) for name, at in _files(self._folder / "alive")},
            ready={id_: frozenset(unquote(name) for name, _ in _files(self._place(id_))) for id_ in events},
        )

    def forget(self, id_: str) -> None:
        """The event is gone; the last one out removes its folder."""
        with suppress(OSError):
            (self._place(id_) / self._name).unlink(missing_ok=True)
            self._place(id_).rmdir()

    def _place(self, id_: str) -> Path:
        return self._folder / "ready" / _quoted(id_)[:120]


def _quoted(text: str) -> str:
    """Fit for the name of a file, whatever a server sends."""
    return quote(text, safe="").replace(".", "%2E")


def _put(path: Path) -> float:
    """Make or touch the file; its time, as the folder's server has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(b"")
    fresh.replace(path)
    return path.stat().st_mtime


def _files(folder: Path) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                if not entry.name.startswith("."):
                    found.append((entry.name, entry.stat().st_mtime))
    return found
