"""VMs made of Linux namespaces, for `forewarn vm run`: a program with its own network and boot id.

Inside such a VM 169.254.169.254 is the service. The supervisor holds the VM from outside and executes the service's
acts; the init process is the VM's first process, and everything in the VM ends with it. The package uses the
standard library and `base`, and makes no decision about maintenance. Start reading at `run`, then
`supervisor` and `init`.
"""
