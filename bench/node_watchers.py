"""`python -m bench.node_watchers`: polls real host nodes, one VM each, in a process of its own.

In the process of the active node, these clients would take its interpreter from it. The line `count` on standard input
begins short polls that are counted, `wait` goes back to long polls. When the input ends, the process writes what was
shown when, and how many polls failed, and ends.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import msgspec

from bench.node_tasks import ShownDocument
from tests.support.node_process import POLL, send_as_vm

_PAUSE_S = 0.02  # between short polls


class WatchedNode(msgspec.Struct, frozen=True):
    """A real host node, and the VM that polls it."""

    host: str
    port: int
    address: str  # of the VM
    scope_id: str  # of the VM


class WatchResult(msgspec.Struct):
    """What the VMs saw."""

    shown: list[ShownDocument]
    polls: int = 0  # that were counted
    failed_polls: int = 0  # of these


class _Watchers:
    def __init__(self, nodes: list[WatchedNode]) -> None:
        self.result = WatchResult([])
        self.is_counting = threading.Event()
        self._is_stopping = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(node,)) for node in nodes]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, node: WatchedNode) -> None:
        etag = ""
        while not self._is_stopping.is_set():
            is_counted = self.is_counting.is_set()
            headers = {"Metadata": "true"}
            if etag and not is_counted:
                headers |= {"If-None-Match": etag, "Prefer": "wait=1"}
            try:
                answer = send_as_vm(node.port, node.address, "GET", POLL, headers=headers)
                is_good = answer.status in (200, 304)
            except OSError:
                is_good = False
            else:
                if answer.status == 200:
                    now = time.monotonic()
                    etag = {name.lower(): text for name, text in answer.headers.items()}.get("etag", "")
                    document = ShownDocument(node.host, node.scope_id, answer.json["DocumentIncarnation"], now)
                    self.result.shown.append(document)
            if is_counted:
                self.result.polls += 1
                self.result.failed_polls += not is_good
                time.sleep(_PAUSE_S)


def _main(nodes: list[WatchedNode], output: Path) -> None:
    watchers = _Watchers(nodes)
    for line in sys.stdin:
        if line.strip() == "count":
            watchers.is_counting.set()
        else:
            watchers.is_counting.clear()
    watchers.stop()
    output.write_bytes(msgspec.json.encode(watchers.result))


if __name__ == "__main__":
    _main(msgspec.json.decode(sys.argv[2], type=list[WatchedNode]), Path(sys.argv[1]))
