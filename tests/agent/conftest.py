"""Shared helpers of the agent's tests: events, steps, a recording observer, an agent in a thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from forewarn.agent.config import parse_config
from forewarn.agent.daemon import AgentDaemon
from forewarn.agent.journal import AgentJournal
from forewarn.agent.model import Event, EventRecord, StepConfig, StepOutcome, StepPhase
from forewarn.agent.status import AgentReport
from forewarn.client import AsyncClient

NOW = 1_000_000.0


def event(id_: str = "E1", kind: str = "Reboot", *, left_s: float | None = 900, **facts: Any) -> Event:
    """An event that lists `vm` and is due in `left_s` seconds; None: it has started."""
    is_started = left_s is None
    return Event(
        **{
            "id": id_,
            "kind": kind,
            "status": "Started" if is_started else "Scheduled",
            "resources": ("vm",),
            "not_before": None if left_s is None else NOW + left_s,
            "source": "Platform",
            "duration_s": -1,
            **facts,
        }
    )


def step(name: str, budget_s: float = 10, **settings: Any) -> StepConfig:
    """A step with defaults."""
    return StepConfig(**{"name": name, "use": "command", "budget_s": budget_s, **settings})


class RecordingObserver:
    """An observer that records each call as (what, kind or name)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.polls = self.failures = 0

    def poll_answered(self, lag_s: float) -> None:
        self.polls += 1

    def poll_failed(self, why: str) -> None:
        self.failures += 1

    def event_first_seen(self, event: Event, notice_s: float | None) -> None:
        self.calls.append(("noticed", event.kind))

    def notice_missed(self, event: Event) -> None:
        self.calls.append(("missed", event.kind))

    def event_started(self, event: Event, notice_s: float) -> None:
        self.calls.append(("started", event.kind))

    def step_ended(self, step: StepConfig, phase: StepPhase, outcome: StepOutcome, took_s: float) -> None:
        self.calls.append((str(phase), step.name))

    def step_cut(self, step: StepConfig, event: Event) -> None:
        self.calls.append(("cut", step.name))

    def event_approved(self, event: Event) -> None:
        self.calls.append(("approved", event.kind))

    def event_gone(self, event: Event, outcome: str) -> None:
        self.calls.append(("gone", outcome))


class AgentThread:
    """An agent in its own thread, which polls often, so that it soon follows a lab's clock."""

    def __init__(self, folder: Path, endpoint: str, text: str, *, boot_id: str = "boot-1") -> None:
        self.folder, self.log, self.boot_id = folder, folder / "log", boot_id
        self.observer = RecordingObserver()
        head = f'endpoint = "{endpoint}"\nstate = "{folder / "state"}"\ngrace = "0s"\n'
        self.config = parse_config(head + text.replace("LOG", str(self.log)).replace("FOLDER", str(folder)))
        self._daemon: AgentDaemon | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._errors: list[BaseException] = []

    @property
    def lines(self) -> list[str]:
        """The lines that commands have written to the log file."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def report(self) -> AgentReport:
        async def ask() -> AgentReport:
            assert self._daemon is not None
            return self._daemon.report()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(60)

    @property
    def records(self) -> tuple[EventRecord, ...]:
        journal = AgentJournal(self.config.journal_path, readonly=True)
        try:
            return journal.records()
        finally:
            journal.close()

    def start(self, *, boot_id: str | None = None) -> AgentThread:
        self.boot_id = boot_id or self.boot_id
        begun = threading.Event()
        self._thread = threading.Thread(target=self._live, args=(begun,))
        self._thread.start()
        assert begun.wait(60)
        return self

    def end(self) -> None:
        """Ends the agent as a signal would; running steps stay unfinished."""
        if self._thread is None or self._loop is None or self._daemon is None:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._daemon.stop)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._thread = None
        if self._errors:
            raise self._errors.pop()

    def __enter__(self) -> AgentThread:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    def _live(self, begun: threading.Event) -> None:
        async def live() -> None:
            client = AsyncClient(self.config.endpoint, sleep=lambda s: asyncio.sleep(min(s, 0.01)))
            self._daemon = AgentDaemon(
                self.config, client=client, observer=self.observer, boot_id=self.boot_id, hold_s=0.0
            )
            self._loop = asyncio.get_running_loop()
            begun.set()
            await self._daemon.run()

        try:
            asyncio.run(live())
        except BaseException as error:  # raised by end()
            self._errors.append(error)
            begun.set()


DRAIN = """
[steps.drain]
use = "command"
run = "echo drain >> LOG"
undo = "echo undrain >> LOG"
budget = "20s"
"""
SAVE = DRAIN.replace("drain", "save").replace("unsave", "restore")
