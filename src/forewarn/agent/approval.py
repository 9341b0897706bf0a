"""Decides whether this VM may approve an event now, by readiness board and approval check. Pure.

One of the listed VMs approves: the first that is alive by the board. A listed VM counts as ready once it has
published that for this event, even if it has died since. A VM that is alive and not ready blocks the approval. A VM
that is not alive (its heartbeat is old or missing) is absent and blocks too, so that the event waits for its
NotBefore, unless the rule ignores absent VMs after a delay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forewarn.agent.model import ApprovalCheckConfig
from forewarn.agent.records import ApprovalCheckRecord
from forewarn.agent.rules import normalize_vm_name

HEARTBEAT_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardView:
    """What the board shows: ages of heartbeats by VM, and who is ready for which event; names as `plain` makes them."""

    heartbeat_ages_s: Mapping[str, float] = field(default_factory=dict)
    ready_vms: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by event id


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecision:
    """`yes`, or why not yet, and when to look again at the latest (None: when something changes)."""

    is_approved: bool
    reason: str = ""
    recheck_at: float | None = None


def approving_vm(resources: Sequence[str], board: BoardView, alive_s: float = HEARTBEAT_TIMEOUT_S) -> str:
    """The first listed VM that is alive; "" if none is."""
    return next(
        (normalize_vm_name(name) for name in resources if _is_alive(normalize_vm_name(name), board, alive_s)), ""
    )


def decide_for_all_vms(
    id_: str,
    resources: Sequence[str],
    vm: str,
    board: BoardView,
    *,
    waited_s: float,
    absent_after_s: float | None,
    alive_s: float = HEARTBEAT_TIMEOUT_S,
) -> ApprovalDecision:
    """May this VM approve for all? `waited_s` since it was itself ready."""
    speaker = approving_vm(resources, board, alive_s)
    if speaker != normalize_vm_name(vm):
        return ApprovalDecision(
            is_approved=False, reason=f"{speaker} speaks for the event" if speaker else "no listed VM is alive"
        )
    missing = [
        normalize_vm_name(name)
        for name in resources
        if normalize_vm_name(name) not in board.ready_vms.get(id_, frozenset())
    ]
    alive = [name for name in missing if _is_alive(name, board, alive_s)]
    if alive:
        return ApprovalDecision(is_approved=False, reason=f"{', '.join(alive)} not ready")
    if missing and (absent_after_s is None or waited_s < absent_after_s):
        return ApprovalDecision(is_approved=False, reason=f"{', '.join(missing)} absent")
    return ApprovalDecision(is_approved=True)


def _is_alive(name: str, board: BoardView, alive_s: float) -> bool:
    return name in board.heartbeat_ages_s and board.heartbeat_ages_s[name] <= alive_s


def decide_by_approval_check(
    gate: ApprovalCheckConfig, consent: ApprovalCheckRecord | None, now: float
) -> ApprovalDecision:
    """What the gate's answers so far come to; a `no` stands."""
    if consent is None:
        return ApprovalDecision(is_approved=False, reason="the gate has not been asked", recheck_at=now)
    if consent.answer:
        return ApprovalDecision(is_approved=consent.answer == "yes", reason=f"the gate says {consent.answer}")
    over_at = consent.first_at + gate.deadline_s
    if now < over_at:
        return ApprovalDecision(
            is_approved=False, reason="the gate is silent", recheck_at=min(over_at, consent.asked_at + gate.every_s)
        )
    return ApprovalDecision(
        is_approved=gate.on_silence == "approve", reason=f"the gate was silent for {gate.deadline_s:g} s"
    )
