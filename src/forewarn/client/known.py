"""What a client knows without asking: the same for both drivers, since it is their session's."""

from __future__ import annotations

from forewarn.client.session import Session


class Known:
    _session: Session

    @property
    def version(self) -> str:
        """The api-version that is asked with: the newest that the service takes, as far as it is known yet."""
        return self._session.version

    @property
    def date(self) -> float | None:
        """The service's time with its latest document: time left is `not_before - date` (spec §12)."""
        return self._session.date

    @property
    def now(self) -> float | None:
        """The service's time: its latest, and what has passed since; None if it told none."""
        return self._session.now()

    @property
    def answered_at(self) -> float | None:
        """When the latest poll was answered, by this machine's monotonic clock; None if none was yet."""
        return self._session.answered_at

    @property
    def held_s(self) -> float:
        """How long the service kept its latest answer on our behalf; 0.0 if it did not."""
        return self._session.held_s

    @property
    def trouble(self) -> str:
        """Why the latest poll of a watcher failed; "" if it did not."""
        return self._session.trouble
