"""The error tree, by what the caller should do.

    ForewarnError
     ├── Rejected       asking again will not help: the message says what to ask instead
     │    ├── NotFound      the thing named does not exist
     │    ├── Refused       the thing exists, but its state forbids it now
     │    ├── Unauthenticated   it is not known who asks
     │    └── Forbidden     it is known who asks, and they may not
     ├── Conflict       somebody else was quicker: read again, decide again
     └── Unavailable    nothing is wrong with the request: try later

A message names the thing and its id, its state, what cannot be, and what to do instead.
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
