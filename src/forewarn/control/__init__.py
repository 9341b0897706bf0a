"""Use cases (one module per noun) and the reconciler that carries out what is due.

Reads from the store, lets `core` decide, commits, and only then performs acts. Imports `store`, `hypervisor`,
`webhooks`, `auth`, `explain` and `core`; holds no rule about maintenance, no HTTP and no SQL. Start with
`control_plane`, then `scope_transactions` and `reconciler`.
"""
