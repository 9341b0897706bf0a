"""What to change in a handler that does not do what a demand says, as sentences for reports."""

from __future__ import annotations

POLL_OFTEN = "Poll at least every five seconds, even while a preparation runs, and read every event of each answer."
PREPARE_EARLY = "Begin to prepare as soon as an event is listed, and finish well before its NotBefore."
REACT = "Act on every event of your VM as soon as it is listed."
ACT_ON_FIRST_DOCUMENT = "Act on the events of the first document after a start, too: they are not the normal state."
ACT_AFTER_ERRORS = "After an error, go on as before it: act on the events of the next good answer."
HANDLE_EACH_EVENT = "Handle each event by itself: do not wait for the start of one before you look at the others."
HANDLE_NEXT_EVENT = "Go on watching after an event: an EventId that was not listed before is a new event."
READ_EVERY_EVENT = "Look at every event of a document, not only at the first or the last one."
READ_EVERY_DOCUMENT = (
    "Read every document, even if its DocumentIncarnation is lower than before: the number can start again."
)
SKIP_UNUSABLE_EVENTS = "Skip an event that you cannot use, and go on with the other events of the document."
READ_KNOWN_KEYS = "Read the keys that you need by name: ignore unknown ones, and have a default for missing ones."
READ_ANY_DATE = (
    "Read NotBefore by its day and time, without its weekday; act at once if it is empty or you cannot read it."
)
USE_SERVICE_CLOCK = "Compute the time left as NotBefore minus the Date of the answer, not by the VM's own clock."
WAIT_FOR_ANSWERS = "Wait up to ten seconds for an answer and its whole body: the service may take that long."
READ_WHOLE_BODIES = "Read the body of an answer to its end, with an HTTP library: it may be long, or come in chunks."
COMPARE_NAMES = (
    "Ask the metadata service for the VM's name (it is not the host name), and compare it as a whole and without "
    "regard to case with every name in Resources."
)
PREPARE_FOR_REDEPLOY = "Prepare for a Redeploy as for a Reboot, as soon as it is listed."
PREPARE_AT_ONCE = "Prepare at once if NotBefore is nearer than you have planned for."
NOTE_SUCCESS_ONLY = "Note an event as prepared only after the preparation has succeeded; try again until then."
PREPARE_AGAIN = (
    "Prepare again when an event that had disappeared is listed again: an older document may have come in between."
)
STAY_PREPARED = "Keep what was prepared until the event has started; undo it only once the event is gone."
IGNORE_FREEZES = "Let the work go on when a Freeze is announced: the VM continues by itself after some seconds."
ONLY_OWN_EVENTS = "Compare Resources with the name of your VM, and act only on events that name it."
PREPARE_ONCE = "Remember by EventId what was prepared, on disk, and do not prepare for the same event again."
RECOVER = "Start the application again when the event is gone, even if it never started or the handler was down."
APPROVE_IN_TIME = "Approve an event of your VM once it is prepared, before NotBefore: the platform waits until then."
LET_ANOTHER_APPROVE = "Let each copy approve for its own VM, or let another copy take over from one that died."
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
DO_NOT_EXIT = "Run until you are told to stop: catch every error of a request and of its answer, and poll again."
START_AGAIN = "Start after a kill or a reboot at any moment, despite locks, sockets and half-written files from before."
WORK_WITHOUT_DISK = "Go on polling when the log or the state cannot be written."
KEEP_POLLING = "Give every request a time limit of five to ten seconds, and keep polling after errors and events."
POLL_AT_START = "Poll at once after a start, before anything that takes long."
SEND_LESS = "Wait at least a second between two requests, and use the last answer until then."
BACK_OFF = "Wait longer after each error in a row, up to some seconds; do not repeat a failed request at once."
SEND_HEADER = "Send the header `Metadata: true` with every request: Azure refuses requests without it."
REUSE_CONNECTIONS = "Close each connection, or use one again; close it even when a request has reached its time limit."
FREE_MEMORY = "Read answers up to a limit, and do not keep what was read."
WAIT_FOR_CHILDREN = "Wait for each process that the handler starts, or end it, before it starts more."
SLEEP_BETWEEN_POLLS = "Sleep between polls: a loop without a pause uses a whole CPU."
LOG_LESS = "Write a repeated error once, and then only when it changes."
