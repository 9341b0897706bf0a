"""A lab with real VMs on this machine, `forewarn lab vms`: two hosts and two small guests of QEMU.

`image` builds the guest, `layout` writes the files of a lab, `network` gives guests their endpoint, and `machines`
starts and ends them. May import `hypervisor` and `service`. Start reading at `layout`.
"""
