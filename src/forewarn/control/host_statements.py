"""Statements of operators about hosts, which the service cannot check: that a host is certainly down."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from forewarn.control.scope_transactions import ScopeTransactions, retry_on_conflict
from forewarn.core.commit import Commit
from forewarn.core.fleet import Host, HostHealth
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.errors import Refused, Remedy


class HostStatementService:
    """Records what operators state about hosts and the service cannot check."""

    def __init__(
        self,
        transactions: ScopeTransactions,
        find_host: Callable[[str], Host],
        unreachable_hosts: Callable[[], frozenset[str]],
    ) -> None:
        self._transactions = transactions
        self._find_host = find_host
        self._unreachable_hosts = unreachable_hosts

    async def confirm_down(self, host_name: str, *, who: str) -> Host:
        """Record durably that a host is certainly down, and return it; its VMs may then be started elsewhere."""
        # Nothing else can know this about a host that does not answer: a VM that still runs there and is started on
        # another host would write to its disks twice. The host stays confirmed down until it is repaired, and no VM
        # comes to it.

        async def attempt() -> Host:
            host = self.check_confirm_down(host_name)
            confirmed = replace(host, confirmed_down=True)
            text = f"host {host.name} confirmed down by {who}: its VMs may be started elsewhere"
            entry = HistoryEntry(
                at=self._transactions.clock.now(), kind=EntryKind.HOST, actor=who, text=text, host=host.name
            )
            await self._transactions.store.commit(Commit(hosts=(confirmed,), entries=(entry,)))
            return confirmed

        return await retry_on_conflict(attempt, f"host {host_name!r}")

    def check_confirm_down(self, host_name: str) -> Host:
        """Return the host if `confirm_down` would accept it now."""
        host = self._find_host(host_name)
        if host.confirmed_down:
            raise Refused(f"host {host.name!r} is confirmed down already", Remedy.REPAIR_HOST, host=host.name)
        if host.health is not HostHealth.FAILED and host.name not in self._unreachable_hosts():
            raise Refused(
                f"host {host.name!r} is {host.health} and no act waits for it, so it cannot be confirmed down",
                Remedy.FAIL_HOST,
                host=host.name,
            )
        return host
