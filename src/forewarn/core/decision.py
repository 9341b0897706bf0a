"""Inputs of a decision about one scope: the policy settings, and the context outside of the scope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from forewarn.core.event import Event
from forewarn.core.faults import Fault, FaultKind
from forewarn.core.fleet import Vm


class EnablementMode(StrEnum):
    """When scheduled events are enabled for a scope: from its first poll until a day without, or always."""

    ON_REQUEST = "on-request"  # from the first poll until a day without polls (spec §8.1, §8.2)
    ALWAYS = "always"  # spec §8.3: in a lab, where even the first restart must publish an event


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of the service that decisions about every scope depend on.

    A scope without polls for `idle_s` is disabled. It has at most `max_user_operations` scheduled ones. An event stays
    listed for `settle_s` after its last outcome. After a restart of the service, events whose notice ended while it was
    down wait `grace_s`.
    """

    enablement: EnablementMode = EnablementMode.ON_REQUEST
    idle_s: float = 24 * 3600  # a scope without polls for this long is disabled (spec §8.2)
    max_user_operations: int = 100  # scheduled per scope (spec §8.4)
    settle_s: float = 0  # an event stays listed this long after its last outcome (spec §6.5)
    grace_s: float = 60  # after a restart, events whose notice ended while the service was down wait this long


def _no_destination(vm: Vm) -> str | None:
    return None


def _no_gate_released(gate_id: str) -> bool:
    return False


def _no_fault(kind: FaultKind, event: Event) -> Fault | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """Inputs of a decision from outside its scope: the lab time, the policy, gates, hosts and faults.

    By default no gate is released, no host is free, and no fault is active.
    """

    now: float
    policy: Policy = Policy()
    resumed_at: float | None = None  # when the service started again after it was down
    is_gate_released: Callable[[str], bool] = _no_gate_released  # by gate id
    find_destination: Callable[[Vm], str | None] = _no_destination  # the host that a VM would move to
    # The active fault of a kind for an event. Asking may use up one of its counted events.
    fault_for: Callable[[FaultKind, Event], Fault | None] = _no_fault
