"""What to change in a handler that does not do what a demand says, as sentences for reports."""

from __future__ import annotations

POLL_OFTEN = "Poll at least every five seconds, even while a preparation runs, and read every event of each answer."
PREPARE_EARLY = "Begin to prepare as soon as an event is listed, and finish well before its NotBefore."
REACT = "Act on every event of your VM, also on one that is listed at the first poll or after an error."
PREPARE_AGAIN = (
    "Prepare again when an event that had disappeared is listed again: an older document may have come in between."
)
STAY_PREPARED = "Keep what was prepared until the event has started; undo it only once the event is gone."
ONLY_OWN_EVENTS = "Compare Resources with the name of your VM, and act only on events that name it."
PREPARE_ONCE = "Remember by EventId what was prepared, on disk, and do not prepare for the same event again."
RECOVER = "When the event is gone, even if that happened while the handler was down, start the application again."
APPROVE_IN_TIME = "Approve an event of your VM once it is prepared, before NotBefore: the platform waits until then."
APPROVE_ONCE = "Remember by EventId what was approved, and approve an event once."
APPROVE_OWN_ONLY = "Approve only events whose Resources name your own VM: an approval starts the event for all of them."
APPROVE_NOTHING = "Send no approvals, or say in the claims file (`approves`) which events the handler approves."
APPROVE_AFTER_PREPARING = "Send the approval after the preparation has ended: the event may start at once."
RETRY_APPROVAL = "Send an approval again, after a pause, until it is answered with 200 or the event has started."
APPROVE_WITH_PAUSES = "Wait longer between attempts to approve, and stop when the event has started or is gone."
SEND_WELL_FORMED_APPROVALS = (
    "Send approvals with `Metadata: true`, an api-version, and the body "
    '{"StartRequests": [{"EventId": "…"}]} with an id that is listed.'
)
DO_NOT_EXIT = "Catch every error of a request and of its answer, wait, and poll again; never exit because of an answer."
KEEP_POLLING = "Give every request a time limit of a few seconds, and keep polling after errors, with short pauses."
POLL_AT_START = "Poll at once after a start, before anything that takes long."
SEND_LESS = "Wait at least a second between two requests, and use the last answer until then."
BACK_OFF = "Wait longer after each error in a row, up to some seconds; do not repeat a failed request at once."
SEND_HEADER = "Send the header `Metadata: true` with every request: Azure refuses requests without it."
REUSE_CONNECTIONS = "Close each connection, or use one again; close it also when a request has reached its time limit."
FREE_MEMORY = "Read answers up to a limit, and do not keep what was read."
WAIT_FOR_CHILDREN = "Wait for each process that the handler starts, or end it, before it starts more."
SLEEP_BETWEEN_POLLS = "Sleep between polls: a loop without a pause uses a whole CPU."
LOG_LESS = "Write a repeated error once, and then only when it changes."
