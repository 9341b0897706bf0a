"""HANDS. One act on one VM, idempotent by the act's id: perform it again and nothing happens twice.

Level, not edge: an implementation of `Hypervisor` (see `seam`) never waits, it says when to ask again.
Never here: a decision about events, the store, a clock; `now` is an argument.
"""
