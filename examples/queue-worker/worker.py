"""A worker: takes jobs from a directory that several workers share, and lays its job down in time when its VM is about
to go away, so that whoever takes it next goes on where it stopped.

A job is a file. `NAME.job` waits, `NAME.taken` is worked on, `NAME.done` is done; inside stands how many steps it
needs and how many are behind it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from forewarn.client import Client, Event
from forewarn.errors import Unavailable

PAUSES_ONLY = "Freeze"  # a few seconds: the job is still there afterwards


class Job:
    def __init__(self, path: Path) -> None:
        self.path = path.rename(path.with_suffix(".taken"))
        self.progress: dict[str, int] = json.loads(self.path.read_text(encoding="utf-8"))

    def step(self) -> None:
        """What costs time; here it only counts."""
        self.progress["behind"] += 1

    @property
    def is_done(self) -> bool:
        return self.progress["behind"] >= self.progress["steps"]

    def lay_down(self, suffix: str) -> None:
        """Written beside it first: a crash leaves the one or the other, and no half."""
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self.progress), encoding="utf-8")
        draft.rename(self.path)
        self.path.rename(self.path.with_suffix(suffix))


class Worker:
    def __init__(self, place: Path, client: Client) -> None:
        self._place = place
        self._client = client
        self._job: Job | None = None
        self.is_resting = False

    def turn(self) -> None:
        """One look at what is announced, then one step of work."""
        self._look()
        if not self.is_resting:
            self._work()

    def _look(self) -> None:
        try:
            events = self._client.mine()
        except Unavailable:
            return  # nothing new is known: go on as before, and ask again
        disruptive = [event for event in events if event.kind != PAUSES_ONLY]
        if disruptive and not self.is_resting:
            self._lay_down()
        self.is_resting = bool(disruptive)
        self._approve([event for event in events if event.status == "Scheduled"])

    def _approve(self, events: list[Event]) -> None:
        """Only now: from the approval on, it may start at any moment."""
        if events:
            try:
                self._client.approve(*events)
            except Unavailable:
                pass  # it will be announced in the next turn, too

    def _work(self) -> None:
        if self._job is None:
            waiting = sorted(self._place.glob("*.job"))
            self._job = Job(waiting[0]) if waiting else None
        if self._job is None:
            return
        self._job.step()
        if self._job.is_done:
            self._job.lay_down(".done")
            self._job = None

    def _lay_down(self) -> None:
        if self._job is not None:
            self._job.lay_down(".job")
            self._job = None


def main(place: str) -> None:
    """The endpoint comes from the environment, else it is Azure's."""
    worker = Worker(Path(place), Client())
    while True:
        worker.turn()
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])
