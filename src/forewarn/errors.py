"""The error tree, ordered by what the caller should do.

    ForewarnError
     ├── Rejected            asking again will not help: the message says what to ask instead
     │    ├── NotFound           the named thing does not exist
     │    ├── Refused            the thing exists, but its state forbids the request now
     │    ├── Unauthenticated    the caller is not known
     │    └── Forbidden          the caller is known and has no permission
     ├── Conflict            another writer was first: read again, decide again
     └── Unavailable         the request is correct: try again later

A message names the thing and its id, its state, what cannot be done, and what to do instead.
"""


class ForewarnError(Exception):
    """Anything forewarn says no with; `str(error)` is a sentence fit for the user."""


class Rejected(ForewarnError):
    """Asking again will not help."""


class NotFound(Rejected):
    """The thing named does not exist."""


class Refused(Rejected):
    """The thing exists, but its state forbids what was asked."""


class Unauthenticated(Rejected):
    """It is not known who asks."""


class Forbidden(Rejected):
    """Whoever asks is known, and is not allowed to."""


class Conflict(ForewarnError):
    """What was decided on is no longer so: read again, decide again."""


class Unavailable(ForewarnError):
    """Nothing is wrong with the request: try again later."""
