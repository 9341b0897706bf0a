"""Reads a fleet file: from TOML text to hosts and VMs, or to a list of problems with line numbers.

Start with `reader`. `tables` defines the format, `parser` reads it, `parents` and `expansion` make the VMs,
`table_checks` and `fleet_checks` find problems. Depends on `core.fleet` and `core.placement`, never on the running
fleet; opens no file.
"""
