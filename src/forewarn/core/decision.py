"""Inputs of a decision about one scope: the policy settings, and the context outside of the scope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from forewarn.core.event import Event
from forewarn.core.faults import Fault, FaultKind
from forewarn.core.fleet import Vm


class EnablementMode(StrEnum):
    ON_REQUEST = "on-request"  # spec §8.1, §8.2
    ALWAYS = "always"  # spec §8.3: a lab, where a first restart must give an event


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    enablement: EnablementMode = EnablementMode.ON_REQUEST
    idle_s: float = 24 * 3600  # spec §8.2
    max_user_operations: int = 100  # spec §8.4
    settle_s: float = 0  # spec §6.5
    grace_s: float = 60  # what came due while nobody could poll waits this long after we are back


def _no_destination(vm: Vm) -> str | None:
    return None


def _no_gate_released(gate_id: str) -> bool:
    return False


def _no_fault(kind: FaultKind, event: Event) -> Fault | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """What a decision about one scope must know of the world outside it."""

    now: float
    policy: Policy = Policy()
    resumed_at: float | None = None  # when the service came back after not having run
    is_gate_released: Callable[[str], bool] = _no_gate_released  # whether a gate lets its events start
    find_destination: Callable[[Vm], str | None] = _no_destination  # where a VM would move to
    fault_for: Callable[[FaultKind, Event], Fault | None] = _no_fault  # the fault that is on for an event
