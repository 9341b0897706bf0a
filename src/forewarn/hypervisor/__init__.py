"""Hypervisors: perform one act on one VM, at most once per act id.

`interface` is what `control` calls; `simulated`, `command`, `process` and `machines` (real VMs) implement it. A
hypervisor never waits for lab time: it returns when to ask again. It may import `core`, `protocol` and leaf modules,
not the store. Start reading at `interface`.
"""
