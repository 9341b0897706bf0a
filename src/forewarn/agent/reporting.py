"""Reports what the agent sees and does: to its log, and to an observer such as the metrics.

Observers are called on the event loop and must return at once; their errors are logged and never stop the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from forewarn.agent.actions import RecordStepEnd
from forewarn.agent.approval import notice_left_s
from forewarn.agent.config import AgentConfig
from forewarn.agent.model import Event, EventRecord, StepConfig, StepOutcome, StepPhase, StepState
from forewarn.client import lists

LOG = logging.getLogger("forewarn.agent")


class AgentObserver(Protocol):
    """Receives what the agent sees and does; events and steps are already journalled by then.

    The agent calls its methods on the event loop, so they must return at once. Errors that they raise are logged.
    """

    def poll_answered(self, lag_s: float) -> None:
        """Called when the endpoint gave a usable answer to a poll, and its changes were journalled.

        `lag_s` is the real time in seconds since the answer of the previous such call, without the time for which the
        server held the latest poll open; 0.0 for the first answer.
        """

    def poll_failed(self, reason: str) -> None:
        """Called when a poll, or the request for this VM's name, got no usable answer."""

    def event_first_seen(self, event: Event, notice_s: float | None) -> None:
        """Called when an event is new to the agent, with `notice_s` seconds of the server's time left.

        `notice_s` is 0.0 if its NotBefore has passed; None if it has already started, or has no readable NotBefore.
        Also called for events that list only other VMs.
        """

    def notice_missed(self, event: Event) -> None:
        """Called when an event that lists this VM was first seen started, or with its NotBefore passed."""

    def event_started(self, event: Event, notice_s: float) -> None:
        """Called when an event that was seen scheduled has started, even one that lists only other VMs.

        `notice_s` may be negative if the server's time was corrected.
        """

    def step_ended(self, step: StepConfig, phase: StepPhase, outcome: StepOutcome, took_s: float) -> None:
        """Called when a run of a step or its undo has ended, or failed, after `took_s` real seconds.

        Not called for a step that was cut, skipped or reused.
        """

    def step_cut(self, step: StepConfig, event: Event) -> None:
        """Called when a step was cut (not run) for this event: no time, or the event has started."""

    def event_approved(self, event: Event) -> None:
        """Called when the endpoint accepted the agent's approval of this event."""

    def event_gone(self, event: Event, outcome: str) -> None:
        """Called when an event is no longer listed; `outcome` is finished, withdrawn or unknown."""


class NullObserver:
    """An `AgentObserver` that ignores everything; the agent's default."""

    def poll_answered(self, lag_s: float) -> None:
        """Do nothing; `lag_s` is how late the answer was, in seconds."""

    def poll_failed(self, reason: str) -> None:
        """Do nothing; `reason` says why the poll failed, for people."""

    def event_first_seen(self, event: Event, notice_s: float | None) -> None:
        """Do nothing; `notice_s` is the seconds of notice left, None if there is none or it is unknown."""

    def notice_missed(self, event: Event) -> None:
        """Do nothing."""

    def event_started(self, event: Event, notice_s: float) -> None:
        """Do nothing; `notice_s` is the notice that the event gave, in seconds."""

    def step_ended(self, step: StepConfig, phase: StepPhase, outcome: StepOutcome, took_s: float) -> None:
        """Do nothing; `took_s` is how long the step took, in seconds."""

    def step_cut(self, step: StepConfig, event: Event) -> None:
        """Do nothing."""

    def event_approved(self, event: Event) -> None:
        """Do nothing."""

    def event_gone(self, event: Event, outcome: str) -> None:
        """Do nothing; `outcome` says how the event ended."""


class _ErrorLoggingObserver:
    """Forwards every call, and logs errors instead of raising them."""

    def __init__(self, observer: AgentObserver) -> None:
        self._observer = observer

    def __getattr__(self, name: str) -> Callable[..., None]:
        call: Callable[..., None] = getattr(self._observer, name)

        def shielded(*arguments: Any) -> None:
            try:
                call(*arguments)
            except Exception:
                LOG.exception("an observer failed")

        return shielded


def with_errors_logged(observer: AgentObserver) -> AgentObserver:
    """Return an observer that forwards every call to `observer`, and logs exceptions instead of raising."""
    return cast("AgentObserver", _ErrorLoggingObserver(observer))


def log_startup(config: AgentConfig) -> None:
    """Log at level INFO that the agent runs, with the names of its steps and the address of its pages."""
    pages = f"http://{config.listen}" if config.listen else "none"
    LOG.info("the agent runs; steps: %s; pages: %s", ", ".join(config.steps) or "none", pages)


class SingleLineFormatter(logging.Formatter):
    """A log formatter that escapes unprintable characters, so that a server cannot forge log lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


def report_event_change(observer: AgentObserver, record: EventRecord, *, is_new: bool, vm: str, now: float) -> None:
    """Log, and tell the observer, that an event is new, has started or is gone; only log other changes."""
    event, left = record.event, notice_left_s(record.event, now)
    if record.gone_at is not None:
        LOG.info("%s %s is gone: %s", event.kind, record.key, record.outcome)
        observer.event_gone(event, record.outcome)
    elif is_new:
        LOG.info("%s %s of %s, rule %r", event.kind, record.key, ", ".join(event.resources), record.rule)
        observer.event_first_seen(event, None if record.started_at is not None else left)
        if lists(event, vm) and left == 0:
            observer.notice_missed(event)
    elif record.started_at is not None:
        LOG.info("%s %s has started", event.kind, record.key)
        observer.event_started(event, record.started_at - record.seen_at)
    else:
        LOG.info("%s %s has changed: not before %s", event.kind, record.key, event.not_before_text or "an unknown time")


def report_step_end(
    observer: AgentObserver, record: EventRecord, action: RecordStepEnd, steps: Mapping[str, StepConfig]
) -> None:
    """Log, as a warning, the end of a step or undo that was not run: cut, skipped, reused or interrupted."""
    run = action.step_run
    LOG.warning("%s %s %s for %s: %s", run.phase, run.step, run.state, record.key, run.text)
    if run.state is StepState.CUT and run.step in steps:
        observer.step_cut(steps[run.step], record.event)
