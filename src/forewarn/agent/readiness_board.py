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
from forewarn.agent.approval import BoardView, normalize_vm_name
from forewarn.agent.decision import is_ready
from forewarn.agent.model import ApproveWhen, EventRecord, event_folder_name
from forewarn.client.events import event_key

HEARTBEAT_INTERVAL_S = 3.0


class ReadinessBoard:
    """The readiness board, a folder shared by all VMs, as the VM `vm` uses it.

    The methods block on the file system: call them in a thread. `publish_and_read` creates the folder if it is missing.
    """

    def __init__(self, folder: Path, vm: str) -> None:
        self._folder, self._name = folder, _safe_file_name(normalize_vm_name(vm))

    def publish_and_read(self, ready: Iterable[str], listed: Iterable[str]) -> BoardView:
        """Publish this VM's heartbeat and the events it is ready for; return what all VMs have published.

        For all others of `listed` it withdraws its readiness. What was published before an OSError stays.
        """
        event_ids, ready_ids = frozenset(listed), frozenset(ready)
        own_heartbeat_at = _touch(self._folder / "alive" / self._name)
        for event_id in ready_ids:
            _touch(self._event_folder(event_id) / self._name)
        for event_id in event_ids - ready_ids:
            (self._event_folder(event_id) / self._name).unlink(missing_ok=True)
        return BoardView(
            heartbeat_ages_s={
                unquote(name): max(0.0, own_heartbeat_at - at) for name, at in _files_with_mtime(self._folder / "alive")
            },
            ready_vms={
                event_id: frozenset(unquote(name) for name, _ in _files_with_mtime(self._event_folder(event_id)))
                for event_id in event_ids
            },
        )

    def remove_event(self, event_id: str) -> None:
        """Withdraw this VM's readiness for an event (`event_key`) that is gone; ignore errors."""
        with suppress(OSError):
            (self._event_folder(event_id) / self._name).unlink(missing_ok=True)
            self._event_folder(event_id).rmdir()

    def _event_folder(self, event_id: str) -> Path:
        return self._folder / "ready" / event_folder_name(event_id)


def _safe_file_name(text: str) -> str:
    """The text encoded as a file name: a server may send anything."""
    return quote(text, safe="").replace(".", "%2E")


def _touch(path: Path) -> float:
    """Creates or touches the file; returns its modification time by the file server's clock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new_file = path.with_name(f".{path.name}.{os.getpid()}")
    new_file.write_bytes(b"")
    new_file.replace(path)
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
    """Publishes this VM's readiness on the board and reads all VMs' readiness, regularly and when woken.

    `view` is the board as last read while a listed event needed all VMs for its approval, and is empty before that;
    `problem` says why the board could not be used at the last try.
    """

    def __init__(
        self, board: ReadinessBoard, get_snapshot: Callable[[], AgentSnapshot], on_change: Callable[[], None]
    ) -> None:
        self._board, self._snapshot, self._on_change = board, get_snapshot, on_change
        self._woken = asyncio.Event()
        self._published_events: set[str] = set()
        self.view = BoardView()
        self.problem = ""

    def wake(self) -> None:
        """Make `run` synchronize now, because an event may have become ready; return at once."""
        self._woken.set()

    async def run(self) -> None:
        """Call `synchronize` at once, then every HEARTBEAT_INTERVAL_S (3 s) and when woken, until cancelled."""
        while True:
            self._woken.clear()
            await self.synchronize()
            with suppress(TimeoutError):
                # Not wait_for: it can swallow a cancellation that comes together with the wake-up.
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                    await self._woken.wait()

    async def synchronize(self) -> None:
        """Publish this VM's heartbeat and readiness, and read all VMs', once, in a thread."""
        # For events that no longer qualify, it withdraws what this object published, but not what an earlier process
        # did.
        snapshot = self._snapshot()
        shared = [record for record in snapshot.open_records if _needs_all_vms(record, snapshot)]
        shown = {event_key(record.event) for record in shared}
        ready = {event_key(record.event) for record in shared if is_ready(record, snapshot)}
        try:
            view = await asyncio.to_thread(self._board.publish_and_read, ready, shown)
            for event_id in self._published_events - shown:
                await asyncio.to_thread(self._board.remove_event, event_id)
        except OSError as error:
            self._set_problem(f"the board cannot be used ({error.strerror or error}): other VMs wait for this one")
            return
        self._published_events, self.problem = shown, ""
        if shared and view != self.view:
            self.view = view
            self._on_change()

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            LOG.error("%s", problem)
        self.problem = problem


def _needs_all_vms(record: EventRecord, snapshot: AgentSnapshot) -> bool:
    rule = snapshot.rules.get(record.rule)
    return record.gone_at is None and rule is not None and rule.approve.when is ApproveWhen.ALL_DONE
