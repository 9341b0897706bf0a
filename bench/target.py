"""The targets of all figures in one table, and the verdict on a measured value."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """Whether a figure reaches its target. Values are stored in results."""

    REACHED = "reached"
    MISSED = "not reached"
    AS_EXPECTED = "as expected"
    BELOW = "below expectation"
    REPORTED = "reported"
    ABSENT = "not there yet"
    FAILED = "not measured"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What one figure must reach. Without a bound the figure is only reported."""

    name: str
    title: str
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    is_expectation: bool = False  # a miss does not fail a strict run

    @property
    def bound(self) -> float | None:
        """The bound, whichever side it is on; None if there is none."""
        return self.at_least if self.at_least is not None else self.at_most

    @property
    def text(self) -> str:
        """The bound with its sign and unit, for the table."""
        if self.bound is None:
            return "report"
        sign = "≥" if self.at_least is not None else "≤"
        return f"{'expect ' if self.is_expectation else ''}{sign} {self.bound:g}{f' {self.unit}' if self.unit else ''}"

    def verdict(self, value: float) -> Verdict:
        """Return the verdict on a measured value."""
        if self.at_least is not None:
            is_met = value >= self.at_least
        elif self.at_most is not None:
            is_met = value <= self.at_most
        else:
            return Verdict.REPORTED
        if self.is_expectation:
            return Verdict.AS_EXPECTED if is_met else Verdict.BELOW
        return Verdict.REACHED if is_met else Verdict.MISSED

    def share(self, value: float) -> float | None:
        """Return the value as a share of the target: 1 or more is reached. None without a bound."""
        if self.bound is None or value <= 0:
            return None
        return value / self.bound if self.at_least is not None else self.bound / value


TARGETS: tuple[Target, ...] = (
    Target(name="keep-alive-cpu", title="CPU per poll, nginx : ours, keep-alive", at_least=0.9),
    Target(name="keep-alive-rate", title="throughput, ours : nginx, keep-alive", at_least=1.2, is_expectation=True),
    Target(name="connection-cpu", title="CPU per poll, nginx : ours, a connection per poll", at_least=0.65),
    Target(
        name="connection-rate",
        title="throughput, ours : nginx, a connection per poll",
        at_least=0.9,
        is_expectation=True,
    ),
    Target(name="half-rate-p99", title="p99 at half the maximum rate, ours : nginx", at_most=1.2),
    Target(name="fleet-cpu", title="CPU per poll, nginx : ours, 8,000 VMs that each poll once a second", at_least=0.83),
    Target(name="two-workers-cpu", title="CPU per poll, two workers : one", at_most=1.1),
    Target(name="mixed-rate", title="polls with 1 % POSTs and 10 changes a second : without", at_least=0.95),
    Target(name="long-poll-last", title="change → last of 10,000 long polls, p99", unit="ms", at_most=250),
    Target(name="long-poll-thousand", title="the same, for every 1,000 of them", unit="ms"),
    Target(name="long-poll-alone", title="change → last of 10,000 long polls, one process on one core, p99", unit="ms"),
    Target(name="idle-memory", title="memory per idle keep-alive connection", unit="KiB", at_most=12),
    Target(name="waiting-memory", title="memory per waiting long poll", unit="KiB", at_most=20),
    Target(name="approval-rate", title="durable approvals, 64 clients : single SQLite commits", at_least=2),
    Target(name="approval-start-rate", title="the same, approvals that start an event"),
    Target(name="approval-cpu", title="CPU per approval over HTTP : of the store alone", at_most=1.5),
    Target(name="record-rate", title="durable commits, 64 callers, PostgreSQL with a standby : SQLite alone"),
    Target(name="record-alone", title="the same, one caller"),
    Target(
        name="cluster-approval-rate",
        title="approvals over HTTP at the active node, 64 clients : commits of its store alone",
        at_least=0.5,
    ),
    Target(name="nodes-shown", title="commit → shown by the last of ten of 300 host nodes, p99", unit="ms", at_most=10),
    Target(name="nodes-shown-overhead", title="the same : plain NATS messages to ten of 300 subscribers, p99"),
    Target(name="nodes-caught-up", title="NATS away for 5 s: all nodes caught up, no poll failed", unit="s", at_most=2),
    Target(name="failover-time", title="active node killed → approval at the other, 1,000 VMs", unit="s", at_most=4),
    Target(name="failover-worst", title="the same, the slowest", unit="s", at_most=6),
    Target(name="switch-time", title="the same, after `node resign`", unit="s", at_most=1),
    Target(name="standby-ready", title="a standby from nothing → ready, 100,000 VMs", unit="s", at_most=10),
    Target(name="schedule-growth", title="scheduling one event, 100,000 VMs : 10 VMs", at_most=1.3),
    Target(name="start-time", title="start with 100,000 VMs", unit="s", at_most=10),
    Target(name="start-memory", title="the same, peak memory", unit="MiB", at_most=1024),
    Target(name="first-start-time", title="first start, which applies the fleet file", unit="s"),
    Target(
        name="first-event-time", title="from `up --detach --wait-ready` to a guest's first event", unit="s", at_most=15
    ),
    Target(name="rollout-time", title="a rollout over 10,000 VMs in virtual time", unit="s", at_most=60),
    # Sorting and cold caches may cost twice as much per VM over ten times the VMs; quadratic work costs ten times.
    Target(name="rollout-growth", title="the same, CPU per VM, 10,000 : 1,000", at_most=2),
    Target(name="planning-time", title="planning a rollout over 100,000 VMs with budgets", unit="s", at_most=10),
    Target(name="planning-growth", title="the same, CPU per VM, 100,000 : 10,000", at_most=1.5),
    Target(name="reaction-held", title="eviction → the agent's first step, long poll, p99", unit="ms", at_most=50),
    Target(name="reaction-polling", title="the same, polling once a second", unit="ms", at_most=1100),
    Target(name="agent-memory", title="memory of an idle agent", unit="MiB", at_most=40),
    Target(name="agent-cpu", title="CPU of an idle agent", unit="%", at_most=0.5),
    Target(
        name="freeze-overhead", title="approval → real guest frozen, p99 above that of QMP alone", unit="ms", at_most=50
    ),
    Target(
        name="migrate-overhead",
        title="approval → real guest migrated live, p99 above that of QMP alone",
        unit="ms",
        at_most=50,
    ),
    Target(name="overview-growth", title="first view of the portal (overview), 100,000 VMs : 100 VMs", at_most=3),
    Target(name="overview-heap", title="the same, memory of its scripts", unit="MiB", at_most=300),
    Target(name="overview-frame", title="the same, longest frame at 50 changes a second", unit="ms", at_most=100),
    Target(name="portal-growth", title="the portal's fleet page, 100,000 VMs : 100 VMs", at_most=3),
    Target(name="portal-heap", title="the same, memory of its scripts", unit="MiB", at_most=300),
    Target(name="portal-frame", title="the same, longest frame at 50 changes a second", unit="ms", at_most=100),
    Target(name="azure-mock-rate", title="throughput, ours : Azure's mock server (quoted)"),
)

BY_NAME = {target.name: target for target in TARGETS}
