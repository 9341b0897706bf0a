"""Reads a fleet file: from TOML text to hosts and VMs, or to a list of problems with line numbers.

Start with `reader`, which also checks the fleet as a whole. `tables` defines the format, `parser` reads it, `expansion`
checks single tables and makes the VMs. Depends on `core.fleet` and `core.placement`, never on the running fleet; opens
no file.
"""
