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
from forewarn.base.duration import exact_duration_text

HEARTBEAT_TIMEOUT_S = 15.0  # a VM with an older heartbeat counts as absent


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardView:
    """What the readiness board, a folder shared by the agents of all VMs, showed when it was last read."""

    heartbeat_ages_s: Mapping[str, float] = field(default_factory=dict)  # seconds before this VM's own heartbeat, by VM
    ready_vms: Mapping[str, frozenset[str]] = field(default_factory=dict)  # names of the ready VMs, by `event_key`


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecision:
    """Whether the agent may approve an event now, and if not, why and when to decide again."""

    is_approved: bool  # True: the function that decided has nothing against the approval
    reason: str = ""  # why it is or is not approved, for people; "": nothing prevents it
    recheck_at: float | None = None  # server time in POSIX seconds at which to decide again; None: not set


def approving_vm(resources: Sequence[str], board: BoardView, heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S) -> str:
    """Return the VM that approves an event for all: the first of `resources` that is alive; "" if none is."""
    return next(
        (
            normalize_vm_name(name)
            for name in resources
            if _is_alive(normalize_vm_name(name), board, heartbeat_timeout_s)
        ),
        "",
    )


def decide_for_all_vms(
    event_id: str,
    resources: Sequence[str],
    vm: str,
    board: BoardView,
    *,
    waited_s: float,
    absent_after_s: float | None,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
) -> ApprovalDecision:
    """Decide whether this VM may approve an event now for all VMs that it lists.

    It may if it is their `approving_vm`; every listed VM that is alive is ready; and every other one was ready as well,
    or `waited_s`, the seconds since this VM became ready, has reached `absent_after_s` (None: wait for ever). After a
    refusal, call this again every few seconds, because time alone may change the decision.
    """
    approver = approving_vm(resources, board, heartbeat_timeout_s)
    if approver != normalize_vm_name(vm):
        return ApprovalDecision(
            is_approved=False, reason=f"{approver} approves for all VMs" if approver else "no listed VM is alive"
        )
    missing = [
        normalize_vm_name(name)
        for name in resources
        if normalize_vm_name(name) not in board.ready_vms.get(event_id, frozenset())
    ]
    alive = [name for name in missing if _is_alive(name, board, heartbeat_timeout_s)]
    if alive:
        return ApprovalDecision(is_approved=False, reason=f"{', '.join(alive)} not ready")
    if missing and (absent_after_s is None or waited_s < absent_after_s):
        return ApprovalDecision(is_approved=False, reason=f"{', '.join(missing)} absent")
    return ApprovalDecision(is_approved=True)


def _is_alive(name: str, board: BoardView, heartbeat_timeout_s: float) -> bool:
    return name in board.heartbeat_ages_s and board.heartbeat_ages_s[name] <= heartbeat_timeout_s


def decide_by_approval_check(
    check: ApprovalCheckConfig, record: ApprovalCheckRecord | None, now: float
) -> ApprovalDecision:
    """Decide whether to approve, from the answers of the approval check so far; does not run the check."""
    if record is None:
        return ApprovalDecision(is_approved=False, reason="the approval check has not run yet", recheck_at=now)
    if record.answer:
        return ApprovalDecision(
            is_approved=record.answer == "yes", reason=f"the approval check answered {record.answer}"
        )
    ends_at = record.first_at + check.deadline_s
    if now < ends_at:
        return ApprovalDecision(
            is_approved=False,
            reason="the approval check gave no answer",
            recheck_at=min(ends_at, record.asked_at + check.every_s),
        )
    return ApprovalDecision(
        is_approved=check.on_silence == "approve",
        reason=f"the approval check gave no answer for {exact_duration_text(check.deadline_s)}",
    )
