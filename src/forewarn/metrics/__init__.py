"""Prometheus metrics of every process of a service: what is counted, and the HTTP port that shows it.

It may import `web`, `metadata` and `control` (see the layers contract) and below. `registry` is kept free of
`control` and `web`, because workers load it. Start reading at `service_metrics`.
"""
