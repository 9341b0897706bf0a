"""The configuration of NATS for a cluster: a user for the control nodes, and one for each host.

`forewarn cluster init` and `cluster add-host` write `nats.conf` from the credentials that lie beside it. The node of a
host may use only the subjects of its host.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

from forewarn.auth import secure_files
from forewarn.auth.client_secrets import new_secret, read_secret, write_secret
from forewarn.cluster.bus import DEFAULT_PREFIX, Subjects, subject_token
from forewarn.errors import Refused

NATS_CONFIG_FILE = "nats.conf"
CONTROL_CREDENTIALS_FILE = "nats-control.credentials"
_HOSTS_DIRECTORY = "nats-hosts"
_CONTROL_USER, _HOST_USER_PREFIX = "control", "host-"
_SUFFIX = ".credentials"
_HEADER = """\
# Written by `forewarn cluster init` and `forewarn cluster add-host`, which write it again: put other settings of the
# server, such as `listen` and `tls`, into a file that includes this one.
"""


def host_credentials_path(directory: Path, host: str) -> Path:
    """Return the path of the NATS credentials of a host's node, which may not exist."""
    return directory / _HOSTS_DIRECTORY / (subject_token(host) + _SUFFIX)


def write_nats_config(directory: Path, hosts: Iterable[str] = (), *, prefix: str = DEFAULT_PREFIX) -> Path:
    """Make NATS credentials for these hosts, and write nats.conf for all users; return its path."""
    hosts = list(hosts)
    for host in hosts:
        if host_credentials_path(directory, host).exists():
            raise Refused(f"host {host!r} has credentials already, and they are never replaced: remove its file first")
    control = directory / CONTROL_CREDENTIALS_FILE
    if not control.exists():
        write_secret(control, f"{_CONTROL_USER}:{new_secret()}")
    secure_files.make_directory(directory / _HOSTS_DIRECTORY)
    for host in hosts:
        write_secret(host_credentials_path(directory, host), f"{_HOST_USER_PREFIX}{subject_token(host)}:{new_secret()}")
    known = sorted((directory / _HOSTS_DIRECTORY).glob(f"*{_SUFFIX}"))
    passwords = dict(read_secret(path).split(":", 1) for path in (control, *known))
    path = directory / NATS_CONFIG_FILE
    secure_files.write_private(path, _render_nats_config(passwords, prefix=prefix).encode())
    return path


def _render_nats_config(passwords: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> str:
    users = "\n".join(f"    {_user(user, password, Subjects(prefix))}" for user, password in passwords.items())
    return f"{_HEADER}authorization {{\n  users = [\n{users}\n  ]\n}}\n"


def _user(user: str, password: str, subjects: Subjects) -> str:
    if user == _CONTROL_USER:
        everything = [f"{subjects.prefix}.>"]
        permissions: dict[str, object] = {"publish": everything, "subscribe": everything}
    else:
        permissions = {
            **subjects.host_node_permissions(unquote(user.removeprefix(_HOST_USER_PREFIX))),
            "allow_responses": True,
        }
    return json.dumps({"user": user, "password": password, "permissions": permissions})
