"""Use cases (one module per noun), and the reconciler that does all work that is due.

Reads from the store, lets `core` decide, commits, and performs acts only after the commit. Imports `store`,
`hypervisor`, `webhooks`, `auth`, `explain` and `core`; holds no rule about maintenance, no HTTP and no SQL. Start
with `control_plane`, then `scope_transactions` and `reconciler`.
"""
