"""DECISIONS. What maintenance means: scopes, notices, when an event starts, what a request leads to.

Everything here is a value or a pure function of values: `now`, ids and hosts come in as arguments.
Never here: I/O, a clock, randomness, logging, a word about HTTP or SQL.
"""
