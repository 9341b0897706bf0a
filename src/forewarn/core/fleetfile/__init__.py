"""THE FLEET FILE. From TOML text to hosts and VMs, or to the list of everything that is wrong with it.

`form` is the format, `table` reads it, `population` makes the VMs, `census` looks at all of them together.
`forewarn.core.proposal` is the door. Never here: the running fleet, a file that is opened.
"""
