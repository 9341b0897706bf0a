"""What every figure must reach, as one table, and the verdict over a measured one."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    REACHED = "reached"
    MISSED = "not reached"
    AS_EXPECTED = "as expected"
    BELOW = "below expectation"
    REPORTED = "reported"
    ABSENT = "not there yet"
    FAILED = "not measured"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table; with neither bound the figure is only reported."""

    name: str
    what: str
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    is_expectation: bool = False  # reported, and nothing follows if it is not met

    @property
    def bound(self) -> float | None:
        return self.at_least if self.at_least is not None else self.at_most

    @property
    def words(self) -> str:
        if self.bound is None:
            return "report"
        sign = "≥" if self.at_least is not None else "≤"
        return f"{'expect ' if self.is_expectation else ''}{sign} {self.bound:g}{f' {self.unit}' if self.unit else ''}"

    def verdict(self, value: float) -> Verdict:
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
        """How much of what is wanted is there: 1 and more is reached."""
        if self.bound is None or value <= 0:
            return None
        return value / self.bound if self.at_least is not None else self.bound / value


TARGETS: tuple[Target, ...] = (
    Target(name="keep-alive-cpu", what="CPU per poll, nginx : ours, keep-alive", at_least=0.9),
    Target(name="keep-alive-rate", what="throughput, ours : nginx, keep-alive", at_least=1.2, is_expectation=True),
    Target(name="connection-cpu", what="CPU per poll, nginx : ours, a connection per poll", at_least=0.65),
    Target(
        name="connection-rate",
        what="throughput, ours : nginx, a connection per poll",
        at_least=0.9,
        is_expectation=True,
    ),
    Target(name="half-rate-p99", what="p99 at half the maximum rate, ours : nginx", at_most=1.2),
    Target(name="fleet-cpu", what="CPU per poll, nginx : ours, 8,000 VMs that each ask once a second"),
    Target(name="two-workers-cpu", what="CPU per poll, two workers : one", at_most=1.1),
    Target(name="mixed-rate", what="polls beside 1 % POSTs and 10 changes a second : undisturbed", at_least=0.9),
    Target(name="long-poll-last", what="change → last of 10,000 long polls, p99", unit="ms", at_most=250),
    Target(name="long-poll-thousand", what="the same, for every 1,000 of them", unit="ms"),
    Target(name="long-poll-alone", what="change → last of 10,000 long polls, one process on one core, p99", unit="ms"),
    Target(name="idle-memory", what="memory per idle keep-alive connection", unit="KiB", at_most=12),
    Target(name="waiting-memory", what="memory per waiting long poll", unit="KiB", at_most=20),
    Target(name="approval-rate", what="durable approvals, 64 clients : single SQLite commits", at_least=2),
    Target(name="approval-start-rate", what="the same, approvals that start something"),
    Target(name="schedule-growth", what="scheduling one event, 100,000 VMs : 10 VMs", at_most=1.3),
    Target(name="start-time", what="start with 100,000 VMs", unit="s", at_most=10),
    Target(name="start-memory", what="the same, most memory", unit="MiB", at_most=1024),
    Target(name="first-start-time", what="first start, the fleet file applied", unit="s"),
    Target(name="rollout-time", what="a rollout over 10,000 VMs in virtual time", unit="s", at_most=60),
    # Twice is what a sort and cold caches may cost over ten times the VMs; anything quadratic is ten.
    Target(name="rollout-growth", what="the same, CPU per VM, 10,000 : 1,000", at_most=2),
    Target(name="reaction-held", what="eviction → the agent's first step, long poll, p99", unit="ms", at_most=50),
    Target(name="reaction-polling", what="the same, polling once a second", unit="ms", at_most=1100),
    Target(name="agent-memory", what="memory of an agent at rest", unit="MiB", at_most=40),
    Target(name="agent-cpu", what="CPU of an agent at rest", unit="%", at_most=0.5),
    Target(name="portal-growth", what="first view of the portal, 100,000 VMs : 100 VMs", at_most=3),
    Target(name="portal-heap", what="the same, memory of its scripts", unit="MiB", at_most=300),
    Target(name="portal-frame", what="the same, longest frame at 50 changes a second", unit="ms", at_most=100),
    Target(name="azure-mock-rate", what="throughput, ours : Azure's mock server, whose figure is quoted"),
)

BY_NAME = {target.name: target for target in TARGETS}
