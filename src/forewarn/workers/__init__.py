"""Processes that answer VMs beside the owner process, which alone has the store; and the publisher that feeds them.

The owner runs a `publisher.MetadataPublisher` with a `pool.WorkerPool`; each worker process runs `worker.Worker`;
they exchange `messages` over a `channel`. It may import `web`, `metadata`, `metrics`, `control` and below. This file
must import nothing: workers start with `python -m`. Start reading at `messages`.
"""
