"""Answers people: the operator API (one module per noun), Azure's Resource Manager (`arm`), the `portal`, and metrics.

It may import control and below, never cluster or service, and it decides nothing about maintenance; `arm` and `portal`
do not import each other. Docstrings of API handlers are the summaries in openapi.json and docs/reference/api.md. Start
with `pipeline` (the steps of a request), `context` (what every handler is given), `routing` (what a route is) and
`api_routes`.
"""
