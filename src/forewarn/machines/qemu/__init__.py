"""QEMU without libvirt: VMs are files with a QEMU command, driven over QMP.

`driver` implements `forewarn.machines.driver.MachineDriver`; `definition` reads a VM's file, `processes`
has the files and the process of a VM on one host, `qmp` the connection to its monitor. May import `core`, `base` and
`machines.driver`. Start reading at `driver`.
"""
