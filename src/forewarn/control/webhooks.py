"""Use cases for webhooks: add, find and remove subscriptions.

The history names only the host of the receiver, because the rest of its URL may contain a password. The secret is
returned once, to the caller that added the webhook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from forewarn.auth.client_secrets import new_secret
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.control.webhook_delivery import WebhookDispatcher
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.resource_ids import ROOT_RESOURCE, parse_resource_id
from forewarn.core.webhook import EventGridStatus, WebhookSchema, WebhookSubscription
from forewarn.errors import NotFound, Refused, Rejected, Remedy

_MIN_ID_PREFIX = 4
_MIN_SECRET_LENGTH = 16
_MAX_URL_LENGTH = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSpec:
    """A webhook to add, as a user asks for it.

    () as `statuses` means all statuses, "" as `secret` generates one. None as `rollouts` means: if nothing else
    filters its messages.
    """

    url: str  # of the receiver, http or https, at most 2000 ASCII characters, without user, password and fragment
    schema: WebhookSchema = WebhookSchema.EVENT_GRID
    resource: str = ROOT_RESOURCE  # a resource id: only events of VMs within it; by default all
    statuses: tuple[EventGridStatus, ...] = ()  # statuses to notify about; (): all
    opted_in_only: bool = False  # only events of VMs with `publish_outside`
    rollouts: bool | None = None  # also what happens to rollouts themselves; None: unless another field filters
    secret: str = ""  # signs messages, 16 characters or more; "": generate one
    from_start: bool = False  # send the whole history, not only what happens from now on
    validate: bool = False  # add it only if the receiver answers the validation request


class WebhookService:
    """Adds, finds and removes webhook subscriptions."""

    def __init__(
        self, *, transactions: ScopeTransactions, new_id: Callable[[], str], webhook_delivery: WebhookDispatcher
    ) -> None:
        self._clock = transactions.clock
        self._store = transactions.store
        self._new_id = new_id
        self._webhook_delivery = webhook_delivery

    async def add(self, spec: WebhookSpec, *, who: str) -> WebhookSubscription:
        """Add a webhook durably and return it with its secret; the dispatcher starts to deliver to it."""
        webhook = WebhookSubscription(
            id=self._new_id().lower(),
            url=_parse_webhook_url(spec.url),
            secret=_check_secret(spec.secret) if spec.secret else new_secret(),
            schema=spec.schema,
            resource=_parse_resource(spec.resource),
            statuses=_in_declared_order(spec.statuses),
            opted_in_only=spec.opted_in_only,
            rollouts=_wants_rollouts(spec),
            created_by=who,
            created_at=self._clock.now(),
            cursor=0 if spec.from_start else self._store.last_seq(),
        )
        self._webhook_delivery.require_allowed(webhook.url)
        if spec.validate:
            await self._webhook_delivery.verification.validate(webhook)
        over = "all VMs" if webhook.resource == ROOT_RESOURCE else webhook.resource
        entry = self._history_entry(who, f"{_webhook_title(webhook)} gets notifications about {over} from now on")
        await self._store.commit(Commit(webhooks=(webhook,), entries=(entry,)))
        return webhook

    async def remove(self, webhook_id: str, *, who: str) -> WebhookSubscription:
        """Remove a webhook durably and return it; the dispatcher stops delivering to it."""
        webhook = self.find(webhook_id)
        entry = self._history_entry(who, f"{_webhook_title(webhook)} was removed")
        await self._store.commit(Commit(removed_webhooks=(webhook.id,), entries=(entry,)))
        return webhook

    def find(self, webhook_id: str) -> WebhookSubscription:
        """Return the webhook with this id, or the only one whose id starts with it (at least four characters)."""
        prefix = webhook_id.strip().lower()
        known = {webhook.id: webhook for webhook in self._store.webhooks()}
        if prefix in known:
            return known[prefix]
        found = [hook for id_, hook in known.items() if id_.startswith(prefix)]
        if len(prefix) < _MIN_ID_PREFIX or not found:
            raise NotFound(f"webhook {webhook_id!r} does not exist", Remedy.LIST_WEBHOOKS)
        if len(found) > 1:
            raise Refused(f"webhook {webhook_id!r} is ambiguous, {len(found)} ids start with it: give more of the id")
        return found[0]

    def _history_entry(self, who: str, text: str) -> HistoryEntry:
        return HistoryEntry(at=self._clock.now(), kind=EntryKind.WEBHOOK, actor=who, text=text)


def _webhook_title(webhook: WebhookSubscription) -> str:
    """Return how history entries call a webhook: its id and the host of its URL, never the whole URL."""
    return f"webhook {webhook.id} ({urlsplit(webhook.url).hostname})"


def _parse_webhook_url(text: str) -> str:
    """Return the URL, trimmed. The message of an error never repeats it, since it may contain a password."""
    url = _split_url(text.strip())
    if url is None or url.scheme not in ("http", "https") or not url.hostname:
        raise Rejected("the webhook's address is not a URL: give one such as https://example.org/hook")
    if url.username is not None or url.password is not None:
        raise Rejected("the webhook's address contains a user or password: leave them out, messages are signed instead")
    if url.fragment:
        raise Rejected("the webhook's address has a part after '#', which is never sent: leave it out")
    return url.geturl()


def _split_url(text: str) -> SplitResult | None:
    if not (text.isascii() and text.isprintable()) or " " in text or len(text) > _MAX_URL_LENGTH:
        return None
    try:
        url = urlsplit(text)
        return url if url.port != 0 else None
    except ValueError:
        return None


def _parse_resource(text: str) -> str:
    try:
        return parse_resource_id(text)
    except Rejected:
        raise Rejected(
            f"{text!r} is not a resource that has events: give / for everything, /subscriptions/ID, "
            "/subscriptions/ID/resourceGroups/NAME, or the id of a VM or set within one"
        ) from None


def _wants_rollouts(spec: WebhookSpec) -> bool:
    is_everything = _parse_resource(spec.resource) == ROOT_RESOURCE
    if spec.rollouts is None:
        return is_everything and not spec.statuses and not spec.opted_in_only
    if spec.rollouts and not is_everything:
        raise Rejected(
            "messages about rollouts are about the whole fleet, but this webhook is for a part of it: "
            "leave out the rollouts, or the resource"
        )
    return spec.rollouts


def _check_secret(text: str) -> str:
    if len(text) < _MIN_SECRET_LENGTH or not text.isprintable():
        raise Rejected(
            f"the secret is too short or not printable: give {_MIN_SECRET_LENGTH} characters or more, "
            "or none to have one generated"
        )
    return text


def _in_declared_order(statuses: tuple[EventGridStatus, ...]) -> tuple[EventGridStatus, ...]:
    return tuple(status for status in EventGridStatus if status in statuses) or tuple(EventGridStatus)
