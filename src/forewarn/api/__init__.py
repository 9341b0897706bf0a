"""The operator API under `/forewarn/v1`: one file per noun, with its handlers and request bodies.

It may import web and what is below it, never arm or portal. A handler parses, calls control or reads the store, and
returns a view. Start with `routes`. Docstrings of handlers are the summaries in openapi.json and docs/reference/api.md.
"""
