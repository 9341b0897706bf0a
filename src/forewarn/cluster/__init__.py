"""Several machines: the bus between the active control node and host nodes, and what they say on it.

The active node publishes one numbered stream per host (`host_streams`). A host node (`host_node`) follows the stream of
its host (`stream_follower`), answers the VMs of that host from it (`host_facts`), and sends everything else to the
active node. A bus (`bus`, `nats_bus`) may lose, repeat and delay messages. It may import `workers` and below, and knows
neither the store's engine nor settings. Start reading at `messages`, then `stream_follower`.
"""
