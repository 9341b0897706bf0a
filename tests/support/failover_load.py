"""VMs and operators that use a cluster through faults, write down what they saw, and a checker that judges it."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType

from tests.support.node_process import NodeProcess
from tests.support.service_process import ServiceProcess

LIMIT_S = 120.0  # of every wait
_PATIENCE_S = 4.0  # for the answer of a control node, which may be stopped
_ERRORS = (OSError, http.client.HTTPException)


@dataclass
class ClientHistory:
    """What clients of a cluster saw. Several threads append to it."""

    requests: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # key → ids in answers
    approved: list[str] = field(default_factory=list)  # events whose approval was answered with 200
    failed_polls: list[str] = field(default_factory=list)
    incarnations: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # by address of a VM
    rounds: Counter[str] = field(default_factory=Counter)  # by address: events from request to end
    refusals: list[str] = field(default_factory=list)  # answers that no client expects


@dataclass(frozen=True)
class RecordFacts:
    """What the record and the ledgers of hosts say in the end."""

    requests: Sequence[str]  # the ids of all requests
    approved: Iterable[str]  # the ids of events with an approval
    performed: Sequence[str]  # the event of each act with success, by the history
    effects: Sequence[str]  # the event of each act in the ledgers of hosts
    early: Sequence[str] = ()  # events that started before their NotBefore without an approval
    entries: Sequence[int] = ()  # the number of each entry of the history, in order


def check_history(history: ClientHistory, facts: RecordFacts) -> None:
    """Nothing acknowledged is lost, nothing is done twice, no poll fails, and no document is older than one before."""
    assert not history.failed_polls, f"polls failed: {history.failed_polls[:3]}"
    assert not history.refusals, f"calls were refused: {history.refusals[:3]}"
    for address, seen in history.incarnations.items():
        assert seen == sorted(seen), f"a document of {address} was older than one before"
    for key, ids in history.requests.items():
        assert len(set(ids)) == 1, f"the key {key} has several requests: {ids}"
        assert ids[0] in facts.requests, f"the request of key {key} was answered, but is not in the record"
    assert len(facts.requests) == len(history.requests), "the record has other requests than clients made"
    lost = set(history.approved) - set(facts.approved)
    assert not lost, f"approvals were answered, but are not in the record: {lost}"
    for acts in (facts.effects, facts.performed):
        ((event_id, times),) = Counter(acts).most_common(1) or [("", 0)]
        assert times <= 1, f"the act of event {event_id} was performed {times} times"
    assert sorted(facts.effects) == sorted(facts.performed), "the ledgers of hosts and the record differ"
    assert not facts.early, f"events started before their NotBefore without an approval: {facts.early}"
    for number, next_number in pairwise(facts.entries):
        assert next_number == number + 1, f"the history has no entry between {number} and {next_number}"


class ClusterLoad:
    """A client for each VM, which restarts it again and again; leaving the block lets them finish their rounds.

    Each one requests a restart with a key, at any control node and again until it is answered, waits for the event at
    the host's node, approves it, and waits for its end.
    """

    def __init__(self, nodes: Sequence[ServiceProcess], host: NodeProcess, vms: dict[str, str], name: str) -> None:
        self.history = ClientHistory()
        self.host_is_away = False  # a poll that fails then is nobody's fault
        self._nodes, self._host, self._name = nodes, host, name
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(vm, address, random.Random(vm)), daemon=True)
            for vm, address in vms.items()
        ]
        self._vms = vms

    def __enter__(self) -> ClusterLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        for thread in self._threads if kind is None else ():
            thread.join(LIMIT_S)
        assert kind is not None or not any(thread.is_alive() for thread in self._threads), "a client waits for ever"

    def wait_for_rounds(self, count: int) -> None:
        """Wait until each VM was restarted this often from now on."""
        rounds, ends_at = Counter(self.history.rounds), time.monotonic() + LIMIT_S
        while any(self.history.rounds[address] < rounds[address] + count for address in self._vms.values()):
            assert time.monotonic() < ends_at, f"the load does not go on: {self.history}"
            time.sleep(0.02)

    def _run(self, vm: str, address: str, chance: random.Random) -> None:
        if self._host.part is not None:
            self._host.part.enter()
        number = 0
        while not self._stopping.is_set():
            number += 1
            self._request(vm, f"{self._name} {vm} {number}", chance)
            event_id = self._wait_for_event(address)
            if event_id:
                self._approve(address, event_id)
                self._wait_for_end(address, event_id)
                self.history.rounds[address] += 1

    def _request(self, vm: str, key: str, chance: random.Random) -> None:
        ends_at = time.monotonic() + LIMIT_S
        while time.monotonic() < ends_at:
            body, headers = {"operation": "restart", "vms": [vm]}, {"Idempotency-Key": key}
            try:
                answer = chance.choice(self._nodes).api("POST", "/requests", body, headers, _PATIENCE_S)
            except _ERRORS:
                time.sleep(0.02)
                continue
            if answer.status == 202:
                self.history.requests[key].append(answer.json["request"]["id"])
                return
            if answer.status != 503:
                self.history.refusals.append(f"{answer.status} {answer.body!r}")
                return

    def _poll(self, address: str) -> list[str] | None:
        """The events that are scheduled or started, as the VM sees them; None if the poll failed."""
        try:
            document = self._host.poll(address)
        except (*_ERRORS, AssertionError) as error:
            if not self.host_is_away:
                self.history.failed_polls.append(repr(error))
            time.sleep(0.02)
            return None
        self.history.incarnations[address].append(document["DocumentIncarnation"])
        return [event["EventId"] for event in document["Events"]]

    def _wait_for_event(self, address: str) -> str:
        ends_at = time.monotonic() + LIMIT_S
        while time.monotonic() < ends_at:
            if events := self._poll(address):
                return events[0]
            time.sleep(0.02)
        self.history.refusals.append(f"{address} sees no event")
        return ""

    def _approve(self, address: str, event_id: str) -> None:
        ends_at, status, is_repeated = time.monotonic() + LIMIT_S, 503, False
        while status == 503 and time.monotonic() < ends_at:
            try:
                status = self._host.approve(address, event_id)
            except _ERRORS:
                is_repeated = True  # the event may be over when the approval is sent again
                time.sleep(0.02)
        if status == 200:
            self.history.approved.append(event_id)
        elif not is_repeated:
            self.history.refusals.append(f"approval: {status}")

    def _wait_for_end(self, address: str, event_id: str) -> None:
        ends_at = time.monotonic() + LIMIT_S
        while time.monotonic() < ends_at:
            events = self._poll(address)
            if events is not None and event_id not in events:
                return
            time.sleep(0.02)
