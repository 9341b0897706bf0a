"""Several machines, and only here: control nodes that share a record, and host nodes that answer for their VMs.

Control nodes: the `record` in PostgreSQL, the `lease` that says which of them is active, `replicated_store`, which the
active one writes through, and `standby`, which follows and takes over. Host nodes: the active node publishes one
numbered stream per host (`host_streams`); a host node (`host_node`) follows it (`stream_follower`), answers its VMs
from it (`host_answers`), and sends everything else to the active node. A bus (`bus`, `nats_bus`) may lose, repeat and
delay messages. It may import `web` and below, and knows no settings. Start reading at `lease`, then `messages`.
"""
