"""Processes that answer VMs beside the owner process, and the publisher that feeds them.

Only the owner has the store. Its `publisher.MetadataPublisher` tells a `frontend.MetadataFrontend` what VMs see, which
answers them itself or with a `pool.WorkerPool`; each worker process runs `worker.Worker`; they exchange `messages` over
a `channel`. It may import `metadata`, `control` and below. This file must import nothing: workers start with
`python -m`. Start reading at `publisher`, then `frontend` and `messages`.
"""
