"""A control node of a cluster, as people are shown it."""

from __future__ import annotations

import msgspec


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A control node as it last described itself, for people."""

    name: str  # unique in the cluster
    url: str  # where other nodes reach it
    role: str  # such as "active" or "standby"
    version: str  # the version of forewarn
    number: int = 0  # the number of the last group in its copy
    status: str = ""  # a sentence, if something is wrong
    last_seen_ago_s: float = 0.0  # seconds since it described itself, by the server's clock; ignored by `put_node`
