"""The reactions a step can use, one file each: a class with `do`, `undo`, `check`; a `ReactionKind`.

The configuration finds a `ReactionKind` in REACTIONS by name. A reaction saves what its undo needs in the step's
folder before it acts. Which event runs which steps, and when, is decided outside this package. Start reading at
`command`.
"""

from __future__ import annotations

from forewarn.agent.reactions.command import CHECKPOINT_REACTION, COMMAND_REACTION
from forewarn.agent.reactions.drain_haproxy import DRAIN_HAPROXY_REACTION
from forewarn.agent.reactions.failover_patroni import FAILOVER_PATRONI_REACTION
from forewarn.agent.reactions.leave_pool import LEAVE_POOL_REACTION
from forewarn.agent.reactions.log import LOG_REACTION
from forewarn.agent.reactions.mail import MAIL_REACTION
from forewarn.agent.reactions.options import ReactionKind
from forewarn.agent.reactions.readiness import READINESS_REACTION
from forewarn.agent.reactions.stop_processes import STOP_PROCESSES_REACTION
from forewarn.agent.reactions.stop_units import STOP_UNITS_REACTION
from forewarn.agent.reactions.webhook import WEBHOOK_REACTION
from forewarn.base.tomlfile import BadValue

_ALL_KINDS = (
    COMMAND_REACTION,
    CHECKPOINT_REACTION,
    DRAIN_HAPROXY_REACTION,
    READINESS_REACTION,
    FAILOVER_PATRONI_REACTION,
    LEAVE_POOL_REACTION,
    LOG_REACTION,
    WEBHOOK_REACTION,
    MAIL_REACTION,
    STOP_UNITS_REACTION,
    STOP_PROCESSES_REACTION,
)
REACTIONS: dict[str, ReactionKind] = {kind.name: kind for kind in _ALL_KINDS}  # by the value of `use`

__all__ = ["REACTIONS", "BadValue", "ReactionKind"]
