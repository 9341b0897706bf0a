"""Inputs of a decision about one scope: the policy settings, and the context outside of the scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from forewarn.base.times import LabTime
from forewarn.core.faults import EventFault


class EnablementMode(StrEnum):
    """When scheduled events are enabled for a scope: while its VMs poll, or always."""

    ON_REQUEST = "on-request"  # from the first poll until `Policy.idle_s` (a day) without polls (spec §8.1, §8.2)
    ALWAYS = "always"  # spec §8.3: in a lab, where even the first restart must publish an event


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of the service that decisions about every scope depend on."""

    enablement: EnablementMode = EnablementMode.ON_REQUEST
    idle_s: float = 24 * 3600  # a scope without polls for this long is disabled (spec §8.2)
    max_user_operations: int = 100  # restarts, redeploys and announced reimages scheduled per scope (spec §8.4)
    settle_s: float = 0  # an event stays listed this long after its last outcome (spec §6.5)
    recommends_rebalancing: bool = False  # Spot VMs may get SpotRebalanceRecommendation events (spec §14.4)
    grace_s: float = 60  # events whose notice ended while service or host's node was down wait this long after it


class HostSilence(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A period in which the VMs of a host could not poll, because the node that answers them was silent."""

    since: float  # when the node was last heard before the silence
    until: float | None = None  # when it was heard again; None: it is silent


class DecisionContext(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Inputs of a decision about one scope from outside the scope, all read before the decision begins.

    Nothing here changes while a decision uses it, so a decision can be repeated or discarded.
    """

    now: LabTime
    policy: Policy = Policy()
    resumed_at: LabTime | None = None  # when the service started again after it was down; None: it was not
    released_gates: frozenset[str] = frozenset()  # ids of released gates, among those of the scope's events
    failed_hosts: frozenset[str] = frozenset()  # names
    destinations: Mapping[str, str] = {}  # VM key → the host it moves to; without an entry, none
    destination_problems: Mapping[str, str] = {}  # VM key → for people: why there is no host that it could move to
    faults: tuple[EventFault, ...] = ()  # active faults on events, oldest first
    hold: str = ""  # why all rollouts are on hold; "": they are not
    held_rollouts: frozenset[str] = (
        frozenset()
    )  # request ids of rollouts whose checks are unclear and hold their events
    host_silences: Mapping[str, HostSilence] = {}  # name of a host → its latest silence, if starts depend on that
