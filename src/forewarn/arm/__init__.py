"""The Azure Resource Manager facade: its maintenance routes, so that Azure's clients work unchanged.

Azure's spelling and error codes live only here. It may import web and what is below it, never api or portal, and
adds no second way to do what control does. Start with `routes`, then `routing`.
"""
