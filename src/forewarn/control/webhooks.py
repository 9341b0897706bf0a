"""Use cases about webhooks: they come and go. Both are in the history, by the receiver's host alone: the rest of an
address may hold a password, and the secret is shown once, to whoever added the webhook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from forewarn.access.secret import new_secret
from forewarn.control.desk import Desk
from forewarn.core.change import Commit
from forewarn.core.history import Entry, What
from forewarn.core.resource import EVERYTHING, read_resource
from forewarn.core.webhook import Happening, Schema, Webhook
from forewarn.errors import NotFound, Refused, Rejected
from forewarn.outbox import Outbox

_SHORTEST_PREFIX = 4
_SHORTEST_SECRET = 16
_LONGEST_URL = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A webhook that somebody asks for."""

    url: str
    schema: Schema = Schema.EVENT_GRID
    over: str = EVERYTHING
    happenings: tuple[Happening, ...] = ()  # (): all
    opted_in_only: bool = False
    secret: str = ""  # "": one is made
    from_start: bool = False  # told the history from its beginning, not from now on
    validate: bool = False  # only if the receiver agrees


class Webhooks:
    def __init__(self, *, desk: Desk, new_id: Callable[[], str], outbox: Outbox) -> None:
        self._clock = desk.clock
        self._store = desk.store
        self._new_id = new_id
        self._outbox = outbox

    async def add(self, wanted: Wanted, *, who: str) -> Webhook:
        webhook = Webhook(
            id=self._new_id().lower(),
            url=read_url(wanted.url),
            secret=_read_secret(wanted.secret) if wanted.secret else new_secret(),
            schema=wanted.schema,
            over=_read_over(wanted.over),
            happenings=_in_order(wanted.happenings),
            opted_in_only=wanted.opted_in_only,
            by=who,
            at=self._clock.now(),
            cursor=0 if wanted.from_start else self._store.last_seq(),
        )
        if wanted.validate:
            await self._outbox.trial.validate(webhook)
        over = "all VMs" if webhook.over == EVERYTHING else webhook.over
        entry = self._entry(who, f"{called(webhook)} is told what happens to {over} from now on")
        await self._store.commit(Commit(webhooks=(webhook,), entries=(entry,)))
        return webhook

    async def remove(self, webhook_id: str, *, who: str) -> Webhook:
        webhook = self.find(webhook_id)
        entry = self._entry(who, f"{called(webhook)} was removed and is told nothing more")
        await self._store.commit(Commit(removed_webhooks=(webhook.id,), entries=(entry,)))
        return webhook

    def find(self, name: str) -> Webhook:
        """The webhook by its id, or by a beginning of it that no other has."""
        wanted = name.strip().lower()
        known = {webhook.id: webhook for webhook in self._store.webhooks()}
        if wanted in known:
            return known[wanted]
        found = [hook for id_, hook in known.items() if id_.startswith(wanted)]
        if len(wanted) < _SHORTEST_PREFIX or not found:
            raise NotFound(f"webhook {name!r} does not exist: `forewarn webhook list` lists them")
        if len(found) > 1:
            raise Refused(f"webhook {name!r} is ambiguous, {len(found)} begin so: give more of the id")
        return found[0]

    def _entry(self, who: str, text: str) -> Entry:
        return Entry(at=self._clock.now(), what=What.WEBHOOK, who=who, text=text)


def called(webhook: Webhook) -> str:
    return f"webhook {webhook.id} ({urlsplit(webhook.url).hostname})"


def read_url(text: str) -> str:
    """An address as somebody typed it; Rejected if nothing can be sent there. The message does not repeat all of it."""
    url = _split(text.strip())
    if url is None or url.scheme not in ("http", "https") or not url.hostname:
        raise Rejected("the webhook's address is no URL: give one such as https://example.org/hook")
    if url.username is not None or url.password is not None:
        raise Rejected("the webhook's address holds a name or password: leave them out, what is sent is signed instead")
    if url.fragment:
        raise Rejected("the webhook's address has a part after '#', which is never sent: leave it out")
    return url.geturl()


def _split(text: str) -> SplitResult | None:
    if not (text.isascii() and text.isprintable()) or " " in text or len(text) > _LONGEST_URL:
        return None
    try:
        url = urlsplit(text)
        return url if url.port != 0 else None
    except ValueError:
        return None


def _read_over(text: str) -> str:
    try:
        return read_resource(text)
    except Rejected:
        raise Rejected(
            f"{text!r} is no resource that events happen to: give / for everything, /subscriptions/ID, "
            "/subscriptions/ID/resourceGroups/NAME, or the id of a VM or set within one"
        ) from None


def _read_secret(text: str) -> str:
    if len(text) < _SHORTEST_SECRET or not text.isprintable():
        raise Rejected(
            f"the secret is short enough to be guessed, or no text: give {_SHORTEST_SECRET} characters or more, "
            "or none to have one made"
        )
    return text


def _in_order(happenings: tuple[Happening, ...]) -> tuple[Happening, ...]:
    return tuple(happening for happening in Happening if happening in happenings) or tuple(Happening)
