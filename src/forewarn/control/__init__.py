"""Use cases (one module per noun), and the reconciler that does all work that is due.

Reads from the store, lets `core` decide, commits, and performs acts only after the commit. Imports `store`, `machines`,
`auth` and `core`; holds no rule about maintenance, serves no HTTP and writes no SQL. Start with `control_plane`, then
`scope_transactions` and `reconciler`.
"""
