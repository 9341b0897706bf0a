"""The response structs of the API for rollouts."""

from __future__ import annotations

from forewarn.base.times import Timestamp
from forewarn.core.request import RolloutTally
from forewarn.web.views import BaseView, EventView


class RolloutView(BaseView, frozen=True, kw_only=True):
    """A platform maintenance rollout: its targets, progress, tally and the update domains that come next."""

    id: str  # the id of its request
    impact: str  # update (freezes VMs), migrate or reboot
    hosts: tuple[str, ...]  # names; (): it covers something else
    scope: str  # an id; "": it covers something else
    scope_title: str  # such as `availability set web`, or `VMs with the tag app=web`; "" if it covers hosts
    progress: str  # running, paused, stopped (by failures, or no window is left), aborted (by a user) or completed
    state: str  # that of any request: in progress, succeeded, failed or canceled
    reason: str  # why it ended, or paused itself; "": neither, or it completed without failures
    closed: bool  # nothing is left to publish, withdraw or wait for
    requested_by: str  # the name of who requested it
    requested_at: Timestamp
    notice_s: float  # the notice of its events, in lab time
    max_failures: int  # 0: failures never stop it
    hold: str  # why all rollouts are on hold; "": they are not, or it has ended
    windows: str  # when its events may start without an approval, for people; "": at any time
    tally: RolloutTally  # how many of its VMs are done, failed, waiting and so on
    next_update_domains: tuple[int, ...]  # each once, ascending; () once it has ended, stopped or been aborted
    waves: tuple[str, ...]  # names, in order; the last is the rest
    wave_vms: tuple[int, ...]  # VMs of each wave, begun or to come; () once it has ended
    wave: int  # number of the wave that it works on, or that settles, from 1
    settle_s: float  # lab time that must pass after the last event of each wave
    settles_until: Timestamp | None  # until when the wave settles; None: it does not
    ends_at: Timestamp | None  # when it probably ends; None: paused, on hold, ended, or it cannot be known
    is_at_pace: bool  # `ends_at` assumes the pace of its events so far; false: that nobody approves
    waits_for: tuple[str, ...]  # what keeps it from publishing more, in clauses: settling, budgets, checks, a hold


class RolloutWithEvents(RolloutView, frozen=True, kw_only=True):
    """The fields of RolloutView, and all events of the rollout, oldest first."""

    events: tuple[EventView, ...]  # live or over, oldest first


class RolloutsView(BaseView, frozen=True, kw_only=True):
    """All open rollouts, and the ended ones among the 10,000 newest requests; the oldest request first.

    The result is empty for a caller who does not see everything.
    """

    rollouts: tuple[RolloutView, ...]
