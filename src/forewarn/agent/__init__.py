"""GUEST DAEMON. Hears of maintenance, decides (purely) which steps to take and when, takes them, approves, and undoes
them once the event is gone. What it is about to do stands in its journal first, so that it goes on after any end.

`decision`, `budget`, `rule` and `approval` are pure: time and boot id come in as arguments. Never here: anything of
the host's side, a clock other than the server's, state that only a process remembers.
"""
