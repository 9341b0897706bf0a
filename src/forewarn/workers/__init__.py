"""Processes that answer VMs beside the owner process, and the publisher that feeds them.

Only the owner has the store. It runs a `publisher.MetadataPublisher` with a `pool.WorkerPool`; each worker process
runs `worker.Worker`; they exchange `messages` over a `channel`. It may import `web`, `metadata`, `metrics`, `control`
and below. This file must import nothing: workers start with `python -m`. Start reading at `publisher`, then
`messages`.
"""
