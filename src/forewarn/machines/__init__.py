"""Everything that touches VMs, processes and networks.

A hypervisor performs one act on one VM, at most once per act id: `interface` is what `control` calls; `simulated`,
`command` and `process` implement it, and `acts` does for real VMs, over a `driver`: `qemu` or `libvirt`. A hypervisor
never waits for lab time: it returns when to ask again. `namespace_vm` makes VMs of namespaces, `guest_network` gives
VMs the metadata address. It may import `core`, `protocol` and `base`, not the store. Start reading at `interface`.
"""
