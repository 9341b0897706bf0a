"""Durable state: scopes, VMs, hosts, events, gates, requests, and their history.

`interface` defines `Store`; `sqlite` implements it for production, `memory` for tests and dry runs, and one
conformance suite specifies both. Imports only `core` and below: no decision, clock or network. Start with
`interface`.
"""

from forewarn.store.backup import restore_backup
from forewarn.store.interface import AppliedCommit, LastPoll, Store
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite import SqliteStore

__all__ = ["AppliedCommit", "LastPoll", "MemoryStore", "SqliteStore", "Store", "restore_backup"]
