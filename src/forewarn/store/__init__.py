"""Durable state: scopes, VMs, hosts, events, gates, requests, and their history.

`interface` defines `Store`; `sqlite` implements it for production, `memory` for tests and dry runs, and one
conformance suite specifies all; `forewarn.cluster` has the store of a control node. Imports only `core` and below: no
decision, no clock, no network. Start with `interface`.
"""

from forewarn.store.backup import restore_backup
from forewarn.store.interface import AppliedCommit, Store
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite import SqliteStore

__all__ = ["AppliedCommit", "MemoryStore", "SqliteStore", "Store", "restore_backup"]
