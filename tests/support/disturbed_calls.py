"""Calls of a driver or a journal that are killed, lost or not answered, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forewarn.machines.driver import HostUnreachable


class ServiceKilled(BaseException):
    """Stands for kill -9: no handler of the product may catch it."""


class Disturbance(StrEnum):
    """What happens at one call of a driver, or at one write of a journal."""

    KILL_BEFORE = "killed before"
    KILL_AFTER = "killed after"
    UNREACHABLE = "host does not answer, and nothing happened"
    LOST_ANSWER = "host did it, but its answer is lost"


@dataclass(slots=True)
class DisturbedCalls:
    """Counts calls, and disturbs the one with the given number (from 0); after a kill, all further ones die too."""

    number: int = -1  # of the call to disturb; -1: none
    kind: Disturbance = Disturbance.KILL_BEFORE
    calls: int = 0
    is_dead: bool = False

    def before(self, *, is_journal: bool = False) -> bool:
        """Count a call; return whether its answer is to be lost. Raises what the disturbance says."""
        is_disturbed = self.calls == self.number
        self.calls += 1
        if self.is_dead or (is_disturbed and self.kind is Disturbance.KILL_BEFORE):
            self.is_dead = True
            raise ServiceKilled
        if is_disturbed and self.kind is Disturbance.UNREACHABLE and not is_journal:
            raise HostUnreachable("the host does not answer")
        return is_disturbed and self.kind is not Disturbance.UNREACHABLE

    def after(self, is_disturbed: bool, *, is_journal: bool = False) -> None:
        """Lose the answer of a call that has been carried out, if `before` said so."""
        if is_disturbed and self.kind is Disturbance.KILL_AFTER:
            self.is_dead = True
            raise ServiceKilled
        if is_disturbed and not is_journal:
            raise HostUnreachable("the host does not answer")
