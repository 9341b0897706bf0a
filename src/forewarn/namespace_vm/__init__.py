"""A VM OF NAMESPACES. Any program put inside a VM: a network, a hostname, a boot id and processes of its own, in which
169.254.169.254 is the service. The *keeper* holds the VM from outside and does to it what the service orders; the
*inside* is the VM's first process, with which everything in it lives and dies.

Never here: a decision about maintenance, lab time, anything but the standard library.
"""
