"""The Azure Resource Manager facade: its maintenance routes, so that Azure's clients work unchanged.

Only this package knows Azure's spelling and error codes. Every change goes through control. Start with
`routes`, then `routing`.
"""
