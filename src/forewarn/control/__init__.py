"""THE LOOP. Use cases (ask, approve, withdraw, apply a fleet), and the reconciler that does what is due.

Gathers from the store, lets the core decide, commits, and only then performs. Never here: a rule about
maintenance (those are in the core), HTTP, SQL.
"""
