"""A lab with real VMs on this machine, `forewarn lab vms`: two hosts and two small guests of QEMU.

`image` builds the guest; `layout` writes the files of a lab, gives guests their endpoint, and starts and ends them. May
import `machines` and `service`. Start reading at `layout`.
"""
