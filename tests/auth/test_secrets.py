"""Client secrets: hard to guess, stored as hashes, and in private files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from forewarn.auth.client_secrets import hash_secret, new_secret, read_secret, secret_matches, write_secret
from forewarn.errors import NotFound, Rejected


def test_a_secret_is_43_characters_that_need_no_quoting() -> None:
    made = {new_secret() for _ in range(1000)}
    assert len(made) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{42}", secret) for secret in made)


def test_a_secret_matches_only_its_own_hash() -> None:
    secret = new_secret()
    known = hash_secret(secret)
    assert secret_matches(secret, known)
    assert not secret_matches(secret[:-1], known)
    assert not secret_matches(new_secret(), known)
    assert not secret_matches("", known)


def test_two_hashes_of_a_secret_differ() -> None:
    secret = new_secret()
    one, other = hash_secret(secret), hash_secret(secret)
    assert one != other
    assert secret_matches(secret, one)
    assert secret_matches(secret, other)
    assert secret.encode() not in one


@pytest.mark.parametrize("known", [b"", b"x" * 16, b"x" * 47, b"x" * 49], ids=len)
def test_no_secret_matches_a_truncated_hash(known: bytes) -> None:
    assert not secret_matches("", known)
    assert not secret_matches(new_secret(), known)


def test_any_text_can_be_compared_with_a_hash() -> None:
    assert not secret_matches("\udcff\x00é", hash_secret(new_secret()))


def test_a_stored_secret_is_private_with_every_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_secret(tmp_path / "secret", "s3cret")
    finally:
        os.umask(before)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert read_secret(tmp_path / "secret") == "s3cret"


def test_a_stored_secret_replaces_a_file_that_others_could_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_secret(path, "new")
    assert read_secret(path) == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_a_stored_secret_is_not_written_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "secret").symlink_to(tmp_path / "elsewhere")
    write_secret(tmp_path / "secret", "s3cret")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620], ids=oct)
def test_a_secret_that_others_may_read_is_rejected_and_not_shown(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    write_secret(path, "s3cret")
    path.chmod(mode)
    with pytest.raises(Rejected, match=rf"others may read it \(mode {mode:04o}\): run chmod 600") as refusal:
        read_secret(path)
    assert "s3cret" not in str(refusal.value)


def test_a_file_without_a_secret_is_rejected(tmp_path: Path) -> None:
    write_secret(tmp_path / "empty", "")
    with pytest.raises(Rejected, match="is empty: put the secret in it"):
        read_secret(tmp_path / "empty")
    with pytest.raises(NotFound, match=r"there is no file '.*/none'"):
        read_secret(tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"\xff\xfe")
    with pytest.raises(Rejected, match="contains no secret but binary data"):
        read_secret(tmp_path / "empty")


def test_a_pipe_in_place_of_a_secret_is_rejected_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(Rejected, match="is not a regular file"):
        read_secret(tmp_path / "pipe")
