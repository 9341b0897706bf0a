"""Checks that a rollout publishes nothing against its health checks (spec §13.5), from what is stored alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forewarn.core.commit import Commit
from forewarn.core.health import CheckOutcome, HealthCheck, Measurement
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutState
from forewarn.store.interface import Store


class HealthChecker:
    """Reports each commit in which a rollout publishes although a check is bad or unclear, or it is paused."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._store: Store
        self._rollouts: dict[str, Rollout] = {}  # by request id, as of the last commit

    def read(self, store: Store) -> None:
        """Begin with what the store has, because an earlier process has ended."""
        self._store = store
        self._rollouts = {r.id: r.rollout for r in store.requests(open_only=True) if r.rollout is not None}

    def check(self, commit: Commit) -> None:
        """Follow a commit, and report what it publishes against a check."""
        publishing = {planned.request_id for planned in commit.planned}
        for request in commit.requests:
            if request.rollout is None:
                continue
            if request.id in publishing:
                self._check_publication(request, self._rollouts.get(request.id, request.rollout))
            self._rollouts[request.id] = request.rollout

    def _check_publication(self, request: MaintenanceRequest, before: Rollout) -> None:
        """`before` is the rollout before this commit, in which a wave may begin."""
        if before.progress is not RolloutState.RUNNING:
            self._report("§13.5 a rollout that does not run publishes nothing", request)
        if before.unclear:
            self._report("§13.5 a rollout whose checks are unclear publishes nothing", request)
        measured = self._store.measurements(request.id) if before.checks else []
        counting = [m for m in measured if (m.wave, m.check_round) == (before.wave, before.check_round)]
        for check in before.checks:
            of_check = [m for m in counting if m.check == check.name]
            if _count(of_check, CheckOutcome.BAD) >= check.bad_limit:
                self._report("§13.5 a rollout with a bad check publishes nothing", request, of_check)
            if not of_check or _has_unclear_end(check, of_check):
                self._report("§13.5 a rollout with an unclear check publishes nothing", request, of_check)


def _count(measurements: Sequence[Measurement], outcome: CheckOutcome) -> int:
    return sum(m.outcome is outcome for m in measurements)


def _has_unclear_end(check: HealthCheck, measurements: Sequence[Measurement]) -> bool:
    latest = [m.outcome for m in measurements]
    unclear, errors = check.unclear_limit, check.error_limit
    return latest[-unclear:] == [CheckOutcome.UNCLEAR] * unclear or latest[-errors:] == [CheckOutcome.ERROR] * errors
