"""Gives the VMs of this host the metadata address, for `forewarn network`: bridges, and routed taps.

`interfaces`, `ruleset` and `plan` are pure: they parse which VM has which device, and say what the machine must have.
`sources` and `record` read the machine with `ip`, `nft` and `virsh`; `apply` changes it, records its former state, and
applies again when devices change. May import `base` only. Start with `plan`.
"""
