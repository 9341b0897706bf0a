"""WIRING. Builds a whole service from settings: store, clock, hypervisor, control, metadata, console.

Used by the command line and by tests. Never here: a rule, a route, a rendering: only who is handed to whom.
"""
