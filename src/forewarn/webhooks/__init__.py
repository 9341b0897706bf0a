"""Webhooks: delivers what happens to events to receivers outside, durably, in order, at least once.

The history is the queue: each webhook has a cursor into it, which moves after the receiver answered 2xx. Real time
governs (spec §12). It may import `core` and leaf modules; the store is passed in. Start reading at `dispatcher`,
then `sender`.
"""

from forewarn.webhooks.dispatcher import WebhookDispatcher

__all__ = ["WebhookDispatcher"]
