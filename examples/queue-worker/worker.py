"""A worker that takes jobs from a shared directory, and puts its job back before its VM goes away.

A job is a file: `NAME.job` waits, `NAME.taken` is in progress, `NAME.done` is done. It holds the number of steps that
the job needs and the number of steps done, so that the next worker continues where this one stopped.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from forewarn.client import Client, Event
from forewarn.errors import Unavailable

PAUSES_ONLY = "Freeze"  # pauses the VM for seconds and loses nothing


class Job:
    """A job that this worker has taken."""

    def __init__(self, path: Path) -> None:
        """Take the job by renaming its file."""
        self.path = path.rename(path.with_suffix(".taken"))
        self.progress: dict[str, int] = json.loads(self.path.read_text(encoding="utf-8"))

    def step(self) -> None:
        """Do one step; here it only counts."""
        self.progress["completed"] += 1

    @property
    def is_done(self) -> bool:
        return self.progress["completed"] >= self.progress["steps"]

    def release(self, suffix: str) -> None:
        """Save the progress and rename the file. It is written beside first, so a crash leaves no half file."""
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self.progress), encoding="utf-8")
        draft.rename(self.path)
        self.path.rename(self.path.with_suffix(suffix))


class Worker:
    """Works on the jobs in a directory, except while its VM has a disruptive event."""

    def __init__(self, directory: Path, client: Client) -> None:
        self._directory = directory
        self._client = client
        self._job: Job | None = None
        self.is_paused = False

    def run_once(self) -> None:
        """Poll for events, then do one step of work."""
        self._poll()
        if not self.is_paused:
            self._work()

    def _poll(self) -> None:
        try:
            events = self._client.own_events()
        except Unavailable:
            return  # nothing new is known: continue, and poll again
        disruptive = [event for event in events if event.kind != PAUSES_ONLY]
        if disruptive and not self.is_paused:
            self._put_job_back()
        self.is_paused = bool(disruptive)
        self._approve([event for event in events if event.status == "Scheduled"])

    def _approve(self, events: list[Event]) -> None:
        """Approve last: after the approval the event may start at any moment."""
        if events:
            try:
                self._client.approve(*events)
            except Unavailable:
                pass  # the next poll shows the event again

    def _work(self) -> None:
        if self._job is None:
            waiting = sorted(self._directory.glob("*.job"))
            self._job = Job(waiting[0]) if waiting else None
        if self._job is None:
            return
        self._job.step()
        if self._job.is_done:
            self._job.release(".done")
            self._job = None

    def _put_job_back(self) -> None:
        if self._job is not None:
            self._job.release(".job")
            self._job = None


def main(directory: str) -> None:
    """Work for ever; the endpoint comes from the environment, else it is Azure's."""
    worker = Worker(Path(directory), Client())
    while True:
        worker.run_once()
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])
