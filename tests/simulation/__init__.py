"""Deterministic simulation: the service, its store, agents and faults in virtual time, with crashes anywhere.

`python -m tests.simulation --schedules 1000` runs random schedules; `--seed N` replays one. A seed gives a schedule
(`generator`), a schedule is a list of operations (`schedule`), and `simulation` carries it out: one thread, one event
loop with virtual time (`virtual_loop`), the real control plane, metadata server and agent (`service`, `guest`),
connected in memory (`network`). `invariants` says what must hold; `shrinking` makes a failing schedule small. Start
reading at `simulation`.
"""
