"""REACTIONS. What a step can do, one file each: a class with `do`, `undo` and `check`, and a `ReactionKind` that the
configuration finds by its name. What a reaction has to know for its undo it writes into its folder before it acts.
Never here: which event gets which steps, and when.
"""

from __future__ import annotations

from forewarn.agent.reaction.checkpoint import CHECKPOINT
from forewarn.agent.reaction.command import COMMAND
from forewarn.agent.reaction.drain_haproxy import DRAIN_HAPROXY
from forewarn.agent.reaction.failover_patroni import FAILOVER_PATRONI
from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.leave_pool import LEAVE_POOL
from forewarn.agent.reaction.log import LOG
from forewarn.agent.reaction.mail import MAIL
from forewarn.agent.reaction.readiness import READINESS
from forewarn.agent.reaction.stop_processes import STOP_PROCESSES
from forewarn.agent.reaction.stop_units import STOP_UNITS
from forewarn.agent.reaction.webhook import WEBHOOK

_ALL = (
    COMMAND,
    CHECKPOINT,
    DRAIN_HAPROXY,
    READINESS,
    FAILOVER_PATRONI,
    LEAVE_POOL,
    LOG,
    WEBHOOK,
    MAIL,
    STOP_UNITS,
    STOP_PROCESSES,
)
REACTIONS: dict[str, ReactionKind] = {kind.name: kind for kind in _ALL}

__all__ = ["REACTIONS", "BadOption", "ReactionKind"]
