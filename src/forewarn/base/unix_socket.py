"""Unix sockets of one user: binds them with mode 0600, and checks who connects.

The mode and the directory keep other users away; the credentials of each peer are checked too, because a mode can be
changed, and a directory can be shared by mistake.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from forewarn.errors import Refused, Rejected

_MAX_SOCKET_PATH_BYTES = 107  # the limit of Linux for the path in a unix socket's address
_ROOT_UID = 0
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The process and the user that connected a unix socket, as the kernel recorded them (SO_PEERCRED)."""

    pid: int  # the id of the process
    uid: int  # the id of the user it ran as when it connected

    @classmethod
    def of(cls, connection: socket.socket) -> PeerCredentials:
        """Return the credentials of the peer of a connected unix socket. Raises OSError if it is closed."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        return cls(pid, uid)


def peer_refusal(peer: PeerCredentials, owner_uid: int) -> str:
    """Return a clause for the log: why this peer may not use a socket of the user with id `owner_uid`."""
    if peer.uid in (owner_uid, _ROOT_UID):
        return ""
    return f"process {peer.pid} runs as user {peer.uid}, and only user {owner_uid} and root may connect"


def bind_unix_socket(path: Path) -> socket.socket:
    """Return a stream socket bound to this path with mode 0600, not listening yet. The caller closes it.

    Removes a socket file that no process listens on. Changes the umask of the process while it binds.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise Rejected(
            f"the socket's path {str(path)!r} is longer than the {_MAX_SOCKET_PATH_BYTES} bytes a system allows: "
            "name a data directory with a shorter path"
        )
    _remove_stale_socket(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)  # not chmod afterwards: others could open it in between
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        sock.close()
        raise Rejected(
            f"the socket {str(path)!r} cannot be created: {error.strerror}; check its directory, or name another"
        ) from error
    finally:
        os.umask(umask)
    return sock


def _remove_stale_socket(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_socket():
        raise Refused(f"{str(path)!r} exists and is not a socket: move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise Refused(f"another forewarn answers on {str(path)!r}: stop it first, or name another data directory")
