"""Fakes, fake servers and harnesses that several test directories and the bench use.

May import all of forewarn; nothing in src/forewarn imports it. Start with `world` (a control plane in virtual time) and
`service_process` (the real service as a child process).
"""
