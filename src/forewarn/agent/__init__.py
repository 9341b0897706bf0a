"""The guest daemon: watches for events, runs the configured steps, approves, and undoes the steps.

It writes each action to its journal before it acts, so that it can continue after any crash or reboot. `decision`,
`approval` and `explanation` are pure: they get time and boot id as arguments. The package imports only `client`,
`protocol` and `base`. Start reading at `daemon`, then `decision`.
"""
