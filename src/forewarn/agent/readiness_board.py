"""A folder shared by all VMs in which each publishes its heartbeat and the events it is ready for.

    alive/VM         touched every few seconds
    ready/EVENT/VM   created once that VM's steps for the event are done

The age of a heartbeat is measured against this VM's own heartbeat, written just before: both carry the file server's
time, so that the clocks of the VMs do not matter. Files are written under another name and renamed into place, so
that no reader sees half a file.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from forewarn.agent.actions import AgentSnapshot
from forewarn.agent.approval import BoardView
from forewarn.agent.decision import is_ready
from forewarn.agent.model import ApproveWhen
from forewarn.agent.records import EventRecord
from forewarn.agent.rules import normalize_vm_name
from forewarn.client.events import event_key

HEARTBEAT_INTERVAL_S = 3.0


class ReadinessBoard:
    """Blocks, as shared folders do: call it in a thread."""

    def __init__(self, folder: Path, vm: str) -> None:
        self._folder, self._name = folder, _safe_file_name(normalize_vm_name(vm))

    def publish_and_read(self, ready: Iterable[str], open_: Iterable[str]) -> BoardView:
        """Show that we are alive and for which events we are ready, then read what others show of open ones."""
        events, wanted = frozenset(open_), frozenset(ready)
        beat_at = _touch(self._folder / "alive" / self._name)
        for id_ in wanted:
            _touch(self._event_folder(id_) / self._name)
        for id_ in events - wanted:
            (self._event_folder(id_) / self._name).unlink(missing_ok=True)
        return BoardView(
            heartbeat_ages_s={
                unquote(name): max(0.0, beat_at - at) for name, at in _files_with_mtime(self._folder / "alive")
            },
            ready_vms={
                id_: frozenset(unquote(name) for name, _ in _files_with_mtime(self._event_folder(id_)))
                for id_ in events
            },
        )

    def remove_event(self, id_: str) -> None:
        """The event is gone; the last one out removes its folder."""
        with suppress(OSError):
            (self._event_folder(id_) / self._name).unlink(missing_ok=True)
            self._event_folder(id_).rmdir()

    def _event_folder(self, id_: str) -> Path:
        return self._folder / "ready" / _safe_file_name(id_)[:120]


def _safe_file_name(text: str) -> str:
    """Fit for the name of a file, whatever a server sends."""
    return quote(text, safe="").replace(".", "%2E")


def _touch(path: Path) -> float:
    """Make or touch the file; its time, as the folder's server has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(b"")
    fresh.replace(path)
    return path.stat().st_mtime


def _files_with_mtime(folder: Path) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                if not entry.name.startswith("."):
                    found.append((entry.name, entry.stat().st_mtime))
    return found


LOG = logging.getLogger("forewarn.agent")


class BoardSynchronizer:
    def __init__(
        self, board: ReadinessBoard, situation: Callable[[], AgentSnapshot], changed: Callable[[], None]
    ) -> None:
        self._board, self._snapshot, self._on_change = board, situation, changed
        self._woken = asyncio.Event()
        self._published_events: set[str] = set()
        self.view = BoardView()
        self.problem = ""

    def wake(self) -> None:
        """Something may be ready now."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            await self.synchronize()
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    HEARTBEAT_INTERVAL_S
                ):  # wait_for may swallow our end when it is poked at that moment
                    await self._woken.wait()

    async def synchronize(self) -> None:
        now = self._snapshot()
        shared = [record for record in now.open_records if _needs_all_vms(record, now)]
        shown = {event_key(record.event) for record in shared}
        ready = {event_key(record.event) for record in shared if is_ready(record, now)}
        try:
            view = await asyncio.to_thread(self._board.publish_and_read, ready, shown)
            for id_ in self._published_events - shown:
                await asyncio.to_thread(self._board.remove_event, id_)
        except OSError as error:
            self._set_problem(f"the board cannot be used ({error.strerror or error}): others wait for this VM")
            return
        self._published_events, self.problem = shown, ""
        if shared and view != self.view:
            self.view = view
            self._on_change()

    def _set_problem(self, why: str) -> None:
        if why != self.problem:
            LOG.error("%s", why)
        self.problem = why


def _needs_all_vms(record: EventRecord, now: AgentSnapshot) -> bool:
    rule = now.rules.get(record.rule)
    return record.gone_at is None and rule is not None and rule.approve.when is ApproveWhen.ALL_DONE
