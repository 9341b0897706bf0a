"""HANDS. One act on one VM, idempotent by the act's id: perform it again and nothing happens twice.

Level, not edge: an implementation of `Hypervisor` (see `seam`) never waits for lab time, it says when to ask again; for
a keeper or a command it waits a few real seconds at most. Never here: a decision about events, the store, lab time
other than the `now` it is given.
"""
