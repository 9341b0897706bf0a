"""The process hypervisor: acts on namespace VMs, performed by the supervisor process of each VM.

`hypervisor` knows the supervisors and performs acts through them, `server` accepts their connections on
DATA/forewarn.vms, `starter` starts the programs of the fleet file. It may import `core` and the rest of `machines`; the
store and the metadata server are passed in as callables. Start reading at `hypervisor`; the other end is
`forewarn.machines.namespace_vm`.
"""
