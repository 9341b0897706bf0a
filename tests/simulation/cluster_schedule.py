"""Schedules of a cluster: what happens to its bus, its control nodes and its host nodes, as values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import msgspec

from forewarn.core.request import RequestedOperation

HOSTS = ("h1", "h2", "h3")
VMS = 6
_OPERATIONS = (RequestedOperation.RESTART, RequestedOperation.REDEPLOY)
_MAX_SHRINK_RUNS = 150


class _ClusterOperation(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", omit_defaults=True):
    """One operation; afterwards some VMs poll, and `wait_s` of virtual time pass."""

    wait_s: float = 0.3


class AskForVm(_ClusterOperation, frozen=True, kw_only=True, tag="ask"):
    """A user requests an operation on a VM."""

    operation: RequestedOperation
    vm: int


class ApproveEvents(_ClusterOperation, frozen=True, kw_only=True, tag="approve"):
    """A VM approves the events of its document, at the node of its host."""

    vm: int


class DisturbBus(_ClusterOperation, frozen=True, kw_only=True, tag="disturb-bus"):
    """The bus loses, repeats and delays messages from now on, with these probabilities, and reorders them."""

    loss: float = 0.0
    repeat: float = 0.0
    max_delay_s: float = 0.0


class StopBus(_ClusterOperation, frozen=True, kw_only=True, tag="stop-bus"):
    """The server of the bus is killed, and started again."""

    down_s: float


class CutOffHost(_ClusterOperation, frozen=True, kw_only=True, tag="cut-off"):
    """Messages from and to the node of a host are lost for a while, unnoticed."""

    host: int
    seconds: float


class CrashHostNode(_ClusterOperation, frozen=True, kw_only=True, tag="crash-node"):
    """The node of a host is killed after it received this many messages, and started again."""

    host: int
    messages: int
    down_s: float


class CrashControlNode(_ClusterOperation, frozen=True, kw_only=True, tag="crash-control"):
    """The control node is killed after it received this many messages, and started again."""

    messages: int
    down_s: float


class TakeOver(_ClusterOperation, frozen=True, kw_only=True, tag="take-over"):
    """Another control node takes over with a new term; the old one can write nothing, and notices after a while."""

    notices_after_s: float


ClusterOperation = (
    AskForVm | ApproveEvents | DisturbBus | StopBus | CutOffHost | CrashHostNode | CrashControlNode | TakeOver
)


class ClusterSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation of a cluster. The seed also decides which messages are lost."""

    seed: int
    operations: tuple[ClusterOperation, ...]

    def describe(self) -> list[str]:
        """Return one line for each operation."""
        return [f"seed {self.seed}", *(msgspec.json.encode(each).decode() for each in self.operations)]


def cluster_schedule_for_seed(seed: int) -> ClusterSchedule:
    """Return the schedule of this seed: always the same one."""
    chance = Random(seed)
    if chance.random() < 0.2:
        return ClusterSchedule(seed=seed, operations=tuple(_late_messages(chance)))
    first = (DisturbBus(loss=0.1, repeat=0.5, max_delay_s=0.8),) if chance.random() < 0.5 else ()
    operations = (*first, *(_random_operation(chance) for _ in range(chance.randrange(12, 26))))
    return ClusterSchedule(seed=seed, operations=operations)


def _late_messages(chance: Random) -> Iterator[ClusterOperation]:
    """Yield many changes of one scope while messages arrive late and in another order."""
    yield DisturbBus(repeat=0.8, max_delay_s=1.5)
    for _ in range(8):
        vm = chance.randrange(VMS // 2)
        yield AskForVm(operation=RequestedOperation.RESTART, vm=vm)
        yield ApproveEvents(vm=vm)
        yield ApproveEvents(vm=(vm + 1) % (VMS // 2), wait_s=0.6)


def _random_operation(chance: Random) -> ClusterOperation:
    wait_s = chance.choice((0.0, 0.05, 0.3, 1.0, 3.0))
    vm, host = chance.randrange(VMS), chance.randrange(len(HOSTS))
    down_s, messages = chance.choice((0.1, 1.0, 4.0)), chance.choice((0, 1, 2, 3, 5, 8, 13))
    match chance.choice(["ask"] * 4 + ["approve"] * 5 + ["bus", "stop", "cut"] + ["node", "control", "take"] * 2):
        case "ask":
            return AskForVm(operation=chance.choice(_OPERATIONS), vm=vm, wait_s=wait_s)
        case "approve":
            return ApproveEvents(vm=vm, wait_s=wait_s)
        case "bus":
            loss, repeat, max_delay_s = (chance.choice(each) for each in ((0.0, 0.1, 0.4), (0.0, 0.3), (0.0, 0.1, 0.6)))
            return DisturbBus(loss=loss, repeat=repeat, max_delay_s=max_delay_s, wait_s=wait_s)
        case "stop":
            return StopBus(down_s=down_s, wait_s=wait_s)
        case "cut":
            return CutOffHost(host=host, seconds=down_s, wait_s=wait_s)
        case "node":
            return CrashHostNode(host=host, messages=messages, down_s=down_s, wait_s=wait_s)
        case "control":
            return CrashControlNode(messages=messages, down_s=down_s, wait_s=wait_s)
        case _:
            return TakeOver(notices_after_s=chance.choice((0.0, 1.0, 6.0)), wait_s=wait_s)


def shrink_cluster_schedule(schedule: ClusterSchedule, fails: Callable[[ClusterSchedule], bool]) -> ClusterSchedule:
    """Return a schedule with fewer operations for which `fails` is true, as it is for the given one."""
    best, runs = schedule, 0
    size = max(1, len(best.operations) // 2)
    while size:
        at = 0
        while at < len(best.operations) and runs < _MAX_SHRINK_RUNS:
            left = best.operations[:at] + best.operations[at + size :]
            candidate = msgspec.structs.replace(best, operations=left)
            runs += 1
            if fails(candidate):
                best = candidate
            else:
                at += size
        size //= 2
    return best
