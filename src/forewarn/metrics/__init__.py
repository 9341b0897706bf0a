"""Prometheus metrics of every process of a service: the values, and the HTTP port that serves them.

It may import `web`, `metadata` and `control` (see the layers contract) and below. `registry` imports neither
`control` nor `web`, because workers load it. Start reading at `service_metrics`.
"""
