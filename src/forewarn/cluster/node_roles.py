"""Decides what a control node that is not active does next: follow, or take the lease. Pure.

No decision compares the times of two machines, except that a node whose clock differs from the record's server does
not take over: it would show VMs and the history a wrong time.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.cluster.record import LACKS_STANDBY, LEASE_S, LeaseRow, tells_of_lost_commits
from forewarn.core.control_node import NodeRow

MAX_CLOCK_DIFFERENCE_S = 2.0  # from the clock of the record's server
RESIGN_HOLD_S = 10.0  # a node that resigned leaves the lease to others for this long
SPACE_HOLD_S = 10.0  # a node with little space for its copy leaves an expired lease to others for this long
MIN_FREE_BYTES = 8 * 1024 * 1024  # on the disk of a copy: with less, the next writes may fail
INTERRUPTION_S = 30.0  # if nobody was active for longer, VMs could not poll, and events wait for the grace period


class NodeRole(StrEnum):
    """What a control node does now. The values are stored in the record, and people read them."""

    STANDBY = "standby"  # it follows the record, and forwards operators' calls
    STARTING = "starting"  # it has taken the lease, and builds its state
    ACTIVE = "active"
    SUSPENDED = "suspended"  # it is active, but its lease may have expired: it only reads
    STOPPING = "stopping"  # it gives the lease up


class StandbyView(msgspec.Struct, frozen=True, kw_only=True):
    """What a standby knows when it decides whether to take the lease; see `reason_not_to_take`."""

    lease: LeaseRow  # as it was read last
    clock_difference_s: float  # its own clock minus that of the record's server; negative: it is behind
    since_resigned_s: float | None = None  # since it gave a lease up, also after a failed start; None: it never did
    resigned_term: int = 0  # of the lease that it gave up last
    free_bytes: int | None = None  # on the disk of its copy; None: not known


def reason_not_to_take(view: StandbyView) -> str:
    """Return why this node must not take the lease now, as a text for people; "" if it may try.

    It must not while another node holds the lease, while PostgreSQL demands no standby although it did, while its
    clock differs by over 2 s from the record's, for 10 s after it gave the lease up unless another node has held it
    since, and, if its disk is almost full, until the lease has been expired for 10 s.
    """
    lease = view.lease
    if lease.remaining_s > 0:
        return f"control node {lease.holder} is active"
    if lease.lacks_standby:
        return LACKS_STANDBY
    if abs(view.clock_difference_s) > MAX_CLOCK_DIFFERENCE_S:
        return clock_problem(view.clock_difference_s)
    nobody_took_it = lease.term == view.resigned_term
    if nobody_took_it and view.since_resigned_s is not None and view.since_resigned_s < RESIGN_HOLD_S:
        return "it has resigned, and leaves the lease to another control node first"
    if -lease.remaining_s < SPACE_HOLD_S:
        return space_problem(view.free_bytes)
    return ""


def clock_problem(difference_s: float) -> str:
    """Return a sentence if a node's clock differs by over 2 s from that of the record's server; else ""."""
    if abs(difference_s) <= MAX_CLOCK_DIFFERENCE_S:
        return ""
    direction = "ahead of" if difference_s > 0 else "behind"
    return (
        f"its clock is {abs(difference_s):.1f} s {direction} that of PostgreSQL, so it does not take over: synchronize "
        "the clocks of both machines"
    )


def space_problem(free_bytes: int | None) -> str:
    """Return a sentence if the disk of a node's copy has less than 8 MiB free; else ""."""
    if free_bytes is None or free_bytes >= MIN_FREE_BYTES:
        return ""
    return (
        f"the disk with its copy has only {free_bytes / (1024 * 1024):.1f} MiB free, so it leaves control to other "
        "nodes: free some space"
    )


def can_take_over(role: str, problem: str) -> bool:
    return role == NodeRole.STANDBY and (not problem or tells_of_lost_commits(problem))


def forwarding_target(lease: LeaseRow | None, own_url: str) -> str:
    """Return the URL of the active node that this lease names; "" if it has expired or is this node's."""
    if lease is None or lease.remaining_s <= 0 or lease.url == own_url:
        return ""
    return lease.url


def name_conflict(own_url: str, known: NodeRow) -> str:
    """Return a sentence if `known` is another node with this node's name; "" if it is this one, or gone."""
    if known.url == own_url or known.last_seen_ago_s > 2 * LEASE_S:
        return ""
    return (
        f"control node {known.name!r} runs at {known.url} already: give each control node another name with --name, or "
        f"wait {2 * LEASE_S:.0f} s if that one has just ended"
    )


def was_interrupted(lease_before: LeaseRow) -> bool:
    """Return whether no node was active for over 30 s, or ever, so that VMs may have missed events."""
    return lease_before.term == 0 or -lease_before.remaining_s > INTERRUPTION_S


def takeover_text(*, before: LeaseRow, node: str, term: int, after_s: float) -> str:
    """Return the history's sentence about a takeover: `control passed from c1 to c2, term 7, after 3.4 s`."""
    if before.term == 0:
        return f"control node {node} is active, term {term}"
    if before.holder == node:
        return f"control node {node} is active again, term {term}, after {after_s:.1f} s"
    return f"control passed from {before.holder} to {node}, term {term}, after {after_s:.1f} s"
