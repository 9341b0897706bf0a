"""A prober of health checks whose answers a test gives, and which asks nobody."""

from __future__ import annotations

from forewarn.base.http_client import HttpClient, LocalTargets
from forewarn.control.health_probes import HealthProber
from forewarn.core.health import CheckOutcome, CheckResult, HealthCheck

_TEXTS = {
    CheckOutcome.GOOD: "it answered 200",
    CheckOutcome.BAD: "it answered 500, not 200",
    CheckOutcome.UNCLEAR: "there is no data",
    CheckOutcome.ERROR: "it refused the connection",
}


class FakeProber(HealthProber):
    """Answers with what is in `outcomes` for the check's name, GOOD without; remembers whom it asked in `asked`.

    `coming` has outcomes of the next measurements by name, which are used up first.
    """

    def __init__(self, **outcomes: CheckOutcome) -> None:
        super().__init__(HttpClient(local_targets=LocalTargets.LOOPBACK), allow_commands=True)
        self.outcomes = outcomes
        self.coming: dict[str, list[CheckOutcome]] = {}
        self.asked: list[str] = []

    async def probe(self, check: HealthCheck) -> CheckResult:
        self.asked.append(check.name)
        coming = self.coming.get(check.name)
        outcome = coming.pop(0) if coming else self.outcomes.get(check.name, CheckOutcome.GOOD)
        return CheckResult(outcome, _TEXTS[outcome])
