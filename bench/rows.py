"""All rows of the benchmark, in the order of the table."""

from __future__ import annotations

from bench import (
    approval,
    azure_mock,
    cluster_approval,
    connection_per_poll,
    failover,
    first_event,
    fleet,
    half_rate,
    host_nodes,
    keep_alive,
    long_poll,
    memory,
    mixed,
    planning,
    portal,
    reaction,
    real_vms,
    record,
    rollout,
    scheduling,
    standby,
    start,
    two_workers,
)
from bench.run_context import Row

ROWS: tuple[Row, ...] = (
    Row(name="keep-alive", measure=keep_alive.measure, figures=("keep-alive-cpu", "keep-alive-rate")),
    Row(name="connection", measure=connection_per_poll.measure, figures=("connection-cpu", "connection-rate")),
    Row(name="half-rate", measure=half_rate.measure, figures=("half-rate-p99",)),
    Row(name="fleet", measure=fleet.measure, figures=("fleet-cpu",)),
    Row(name="two-workers", measure=two_workers.measure, figures=("two-workers-cpu",)),
    Row(name="mixed", measure=mixed.measure, figures=("mixed-rate",)),
    Row(
        name="long-poll", measure=long_poll.measure, figures=("long-poll-last", "long-poll-thousand", "long-poll-alone")
    ),
    Row(name="memory", measure=memory.measure, figures=("idle-memory", "waiting-memory")),
    Row(name="approval", measure=approval.measure, figures=("approval-rate", "approval-start-rate", "approval-cpu")),
    Row(name="record", measure=record.measure, figures=("record-rate", "record-alone")),
    Row(name="cluster-approval", measure=cluster_approval.measure, figures=cluster_approval.FIGURES),
    Row(name="host-nodes", measure=host_nodes.measure, figures=host_nodes.FIGURES),
    Row(name="failover", measure=failover.measure, figures=failover.FIGURES),
    Row(name="standby", measure=standby.measure, figures=standby.FIGURES),
    Row(name="scheduling", measure=scheduling.measure, figures=("schedule-growth",)),
    Row(name="start", measure=start.measure, figures=("start-time", "start-memory", "first-start-time")),
    Row(name="first-event", measure=first_event.measure, figures=("first-event-time",)),
    Row(name="rollout", measure=rollout.measure, figures=("rollout-time", "rollout-growth")),
    Row(name="planning", measure=planning.measure, figures=planning.FIGURES),
    Row(
        name="reaction",
        measure=reaction.measure,
        figures=("reaction-held", "reaction-polling", "agent-memory", "agent-cpu"),
    ),
    Row(name="real-vms", measure=real_vms.measure, figures=("freeze-overhead", "migrate-overhead")),
    Row(name="portal", measure=portal.measure, figures=portal.FIGURES),
    Row(name="azure-mock", measure=azure_mock.measure, figures=("azure-mock-rate",)),
)
