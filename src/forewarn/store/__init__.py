"""MEMORY. What is true, durably: scopes, VMs, hosts, events, gates, requests, and the history of them all.

Two implementations of one `Store` (see `seam`): `sqlite` for people, `memory` for tests and simulation; one
conformance suite is the specification of both. Never here: a decision, a clock, the network.
"""

from forewarn.store.backup import restore
from forewarn.store.memory import MemoryStore
from forewarn.store.seam import Committed, Polled, Store
from forewarn.store.sqlite import SqliteStore

__all__ = ["Committed", "MemoryStore", "Polled", "SqliteStore", "Store", "restore"]
