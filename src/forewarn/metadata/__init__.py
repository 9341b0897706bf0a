"""THE HOST'S MOUTH. What VMs talk to: who is calling (by the network), what they are shown (from memory), and how
much they may ask of us. Publish scopes on a `Board`, assign places to VMs in `Callers`, start a `MetadataServer`.

Polls never touch the store: only a scope's first request and approvals ask the house, through `Backend`.
Never here: a decision about events, the store itself, lab time beyond what is shown. Holds, delays and deadlines
are real time (spec §12).
"""

from forewarn.metadata.board import Board
from forewarn.metadata.entrance import By, Entrance, listener_of
from forewarn.metadata.hall import Tally
from forewarn.metadata.identity import (
    BoundDevice,
    CalledAddress,
    Callers,
    Fixed,
    Mark,
    PerPort,
    SourceAddress,
    Strategy,
    place_within,
)
from forewarn.metadata.limits import Limits
from forewarn.metadata.listener import Lab, Listener, Way, open_lab, open_network
from forewarn.metadata.observation import Observations
from forewarn.metadata.porter import Found, Porter
from forewarn.metadata.seam import Backend, Reset, ScopeView, View
from forewarn.metadata.server import MetadataServer

__all__ = [
    "Backend",
    "Board",
    "BoundDevice",
    "By",
    "CalledAddress",
    "Callers",
    "Entrance",
    "Fixed",
    "Found",
    "Lab",
    "Limits",
    "Listener",
    "Mark",
    "MetadataServer",
    "Observations",
    "PerPort",
    "Porter",
    "Reset",
    "ScopeView",
    "SourceAddress",
    "Strategy",
    "Tally",
    "View",
    "Way",
    "listener_of",
    "open_lab",
    "open_network",
    "place_within",
]
