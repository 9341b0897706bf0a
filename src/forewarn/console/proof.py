"""A client's secret, checked: the same way and in the same words wherever one signs in.

Nothing slows down those who guess: a secret is 256 random bits, and there are none of other making.
"""

from __future__ import annotations

import logging

from forewarn.access.claims import shown
from forewarn.access.secret import fits, hashed, new_secret
from forewarn.core.access import Client
from forewarn.errors import Unauthenticated
from forewarn.store.seam import Store

log = logging.getLogger(__name__)
_NOBODYS = hashed(new_secret())  # compared with where there is no client, so that both take the same time


def proven(client_id: str, secret: str, store: Store) -> Client:
    """The client with this id and secret; that one is unknown or the other wrong cannot be told apart."""
    client = store.client(client_id.casefold())
    known = client.secret_hash if client is not None else _NOBODYS
    if not fits(secret, known) or client is None:
        # An id that nobody has may be a secret that was typed in its place.
        log.info("a sign-in as %s was refused", shown(client.id) if client is not None else "nobody we know")
        raise Unauthenticated(
            f"client {shown(client_id)} does not exist, or this is not its secret: "
            "`forewarn access show` lists the clients"
        )
    return client
