"""The secrets that control nodes of a cluster share: made once, and copied by the operator.

`forewarn cluster init` makes a directory with the CA, the key of tokens, the administrator's secret and
users of NATS. The record
keeps a fingerprint of them, so that a node with the secrets of another cluster stops before it does harm.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from forewarn.auth import pem, secure_files
from forewarn.auth.certificate_authority import new_certificate_authority, new_ec_key
from forewarn.auth.certificates import ca_certificate_path
from forewarn.auth.client_secrets import new_secret, read_secret, write_secret
from forewarn.auth.tokens import SigningKey
from forewarn.cluster.nats_config import write_nats_config
from forewarn.cluster.standby import FINGERPRINT_NAME, require_same_secrets
from forewarn.errors import NotFound, Refused, Rejected
from forewarn.service.data_directory import ADMIN_SECRET_FILE, TOKEN_KEY_FILE, SecretFiles
from forewarn.service.settings import Settings
from forewarn.store.interface import Store

SECRETS_DIRECTORY = "secrets"  # in the data directory, unless the setting `secrets` names another
_ANY_NAME = ("forewarn.invalid",)  # a CA that may sign more than loopback names may sign any


def create_cluster_secrets(directory: Path, now: float, hosts: Iterable[str] = ()) -> SecretFiles:
    """Make the secrets of a cluster and nats.conf in a new or empty directory, all or none; return the paths."""
    is_new = not directory.exists()
    secure_files.make_directory(directory)
    if found := sorted(path.name for path in directory.iterdir()):
        raise Refused(
            f"directory {str(directory)!r} is not empty (it has {found[0]!r}), and secrets are never replaced: name a "
            "new directory, or empty this one if `forewarn cluster init` was interrupted there"
        )
    files = _files_in(directory)
    try:
        SigningKey.load_or_create(files.token_key)
        write_secret(files.admin_secret, new_secret())
        write_nats_config(directory, hosts)
        key = new_ec_key()
        pem.write_key(directory / "ca.key", key)
        # Last, because a directory with a CA counts as complete.
        authority = new_certificate_authority(key, _ANY_NAME, now)
        pem.write_certificate(ca_certificate_path(directory), authority.certificate)
    except BaseException:
        # Half of the secrets would make the next attempt refuse a directory that nobody can use.
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if is_new:
            directory.rmdir()
        raise
    return files


def load_cluster_secrets(settings: Settings) -> SecretFiles:
    """Return the paths of the cluster's secrets on this control node, after checking that they exist."""
    directory = Path(settings.secrets) if settings.secrets else settings.directory / SECRETS_DIRECTORY
    files = _files_in(directory)
    for path in (ca_certificate_path(directory), directory / "ca.key", files.token_key, files.admin_secret):
        if not path.exists():
            raise Rejected(
                f"the cluster's secrets are not complete, {str(path)!r} is missing: run `forewarn cluster init DIR` "
                "once, and copy DIR to every control node, to the directory of the setting 'secrets'"
            )
    return files


def secrets_fingerprint(files: SecretFiles) -> str:
    """Return a fingerprint of the cluster's secrets: 32 hexadecimal digits, which do not reveal them.

    Of the CA, only the certificate counts.
    """
    try:
        authority = secure_files.read_public(ca_certificate_path(files.authority))
        parts = (
            authority,
            SigningKey.load_or_create(files.token_key).kid.encode(),
            read_secret(files.admin_secret).encode(),
        )
    except NotFound as error:
        raise Rejected(str(error)) from error
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


async def check_fingerprint(store: Store, fingerprint: str) -> None:
    """Compare this node's fingerprint of the cluster's secrets with the stored one; store the first one."""
    known = store.load(FINGERPRINT_NAME)
    if known is None:
        await store.save(FINGERPRINT_NAME, fingerprint.encode())
    else:
        require_same_secrets(known, fingerprint)


def _files_in(directory: Path) -> SecretFiles:
    return SecretFiles(
        authority=directory, token_key=directory / TOKEN_KEY_FILE, admin_secret=directory / ADMIN_SECRET_FILE
    )
