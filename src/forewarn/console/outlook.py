"""The directory as one caller sees it."""

from __future__ import annotations

from collections.abc import Sequence

from forewarn.console.directory import Directory
from forewarn.console.register import Listed
from forewarn.core.access import Grant, Principal, Right
from forewarn.core.fleet import Vm
from forewarn.core.resource import EVERYTHING, covers, resource_of


class Outlook:
    """The directory, without the VMs that a caller may not read: to them these do not exist."""

    def __init__(self, directory: Directory, principal: Principal) -> None:
        self.whole = directory
        self._principal = principal
        self.sees_all = principal.may(Right.READ, EVERYTHING)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What the outlook follows from: who has the same sees the same."""
        return self._principal.grants

    def sees(self, vm: Vm) -> bool:
        return self.reads(resource_of(vm))

    def reads(self, resource: str) -> bool:
        """And all that lies within it."""
        return self.sees_all or self._principal.may(Right.READ, resource)

    def find(self, name: str) -> Vm:
        return self.whole.find(name, self.sees)

    def find_any(self, name: str) -> Vm:
        return self.whole.find_any(name, self.sees)

    def within(self, resource: str) -> Sequence[Listed]:
        every = self.whole.within(resource)
        # VMs of an availability set are in it, but not under its id: who may read the one may not read the others.
        if self.reads(resource) and all(covers(resource, one.resource) for one in every[:1]):
            return every
        return [one for one in every if self.reads(one.resource)]

    def sets_within(self, resource: str) -> list[str]:
        """A set that the caller may not read is not shown, even where they may read a VM of it."""
        return [one for one in self.whole.sets_within(resource) if self.reads(one)]

    def groups(self) -> list[str]:
        """Those that hold anything that the caller may read."""
        return [one for one in self.whole.groups() if self.reads(one) or self.within(one) or self.sets_within(one)]

    def commonest_home(self) -> tuple[str, str] | None:
        return self.whole.commonest_home()

    def subscriptions(self) -> set[str]:
        return self.whole.subscriptions()
