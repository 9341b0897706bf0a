"""Durable state: scopes, VMs, hosts, events, gates, requests, and their history.

`interface` defines `Store`; `sqlite` implements it for production, `memory` for tests and dry runs, and one
conformance suite specifies all. `replicated` is the SQLite store of a control node whose writes are shared through a
`record`, such as `postgres_record`; `following` keeps the copies of other nodes, and `lease` says which node may write.
Imports only `core` and below: no decision or clock, and no network but PostgreSQL's. Start with `interface`.
"""

from forewarn.store.backup import restore_backup
from forewarn.store.interface import AppliedCommit, LastPoll, Store
from forewarn.store.lease import HeldLease
from forewarn.store.memory import MemoryStore
from forewarn.store.replicated import ReplicatedStore
from forewarn.store.sqlite import SqliteStore

__all__ = [
    "AppliedCommit",
    "HeldLease",
    "LastPoll",
    "MemoryStore",
    "ReplicatedStore",
    "SqliteStore",
    "Store",
    "restore_backup",
]
