"""WORD OUTWARDS. Webhooks: what happens to events is told to whoever outside asked for it, durably, at least once.

The history is the outbox: a webhook's cursor is a number in it, moved once the receiver has said 2xx. Real time governs
(spec §12). Never here: which events there are, what is told of them (that is `core.notification`), SQL.
"""

from forewarn.outbox.outbox import Outbox

__all__ = ["Outbox"]
