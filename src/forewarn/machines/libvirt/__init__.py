"""The driver for libvirt: operations on the domains of several hosts, each with one connection.

`session` makes every call to libvirt's Python module, which has no types; `connection` runs them in threads with a
timeout; `domain_state` is pure; `driver` implements `MachineDriver`; `fleet_import` writes a fleet file from what hosts
have. May import `core` and `base`. Start reading at `driver`.
"""
