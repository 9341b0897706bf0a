"""Domain decisions about maintenance: what an event is, when it starts, and what a request leads to.

Everything here is a value or a pure function of values; `now`, ids and hosts are arguments. Imports only `protocol`
and `base`: no I/O, clock, randomness, logging, HTTP or SQL. Start with `event`, `scope` and `lifecycle`, then
`planning` (request to events), `release` (when an event starts) and `reconcile` (what is due now).
"""
