"""Gives the VMs of this host the metadata address, for `forewarn network`: bridges, and routed taps.

`interfaces`, `libvirt_xml`, `ruleset` and `plan` are pure: they parse which VM has which device, and say what the
machine must have. `machine` reads the machine with `ip`, `nft` and `virsh`; `apply` changes it, and records its former
state; `follow` applies again when devices change. May import `base` only. Start with `plan`.
"""
