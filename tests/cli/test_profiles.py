"""Signing in at services elsewhere, and what is kept of that."""

import os
import pty
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.cli.credentials import Profile, ProfileFile
from forewarn.errors import Rejected
from tests.support.scripted_server import json_reply

SECRET = "it's-a-$ecret-of-the-administrator"


def kept(command: Any) -> Path:
    return command.data / "config" / "forewarn" / "profiles.toml"  # type: ignore[no-any-return]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def words(server: Any, certificates: Any, *more: str) -> list[str]:
    return ["login", "--server", server.url, "--ca", str(certificates.ca.certificate), "--client-id", "ci", *more]


def test_a_secret_from_standard_input_is_kept_where_nobody_else_can_read(
    command: Any, elsewhere: Any, certificates: Any
) -> None:
    result = command(*words(elsewhere, certificates), typed=f"{SECRET}\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"Signed in at {elsewhere.url} as client ci; kept as profile default.\n")
    assert "forewarn --profile default fleet show" in result.stdout
    assert SECRET not in result.output
    assert (mode(kept(command)), mode(kept(command).parent)) == (0o600, 0o700)
    assert tomllib.loads(kept(command).read_text())["default"]["secret"] == SECRET


def test_a_secret_in_a_file_stays_there(command: Any, elsewhere: Any, certificates: Any, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(f"{SECRET}\n")
    command.good(*words(elsewhere, certificates, "--secret-file", str(file), "--profile", "lab"))
    assert SECRET not in kept(command).read_text()
    assert "client ci" in command.good("whoami", "--profile", "lab")
    file.chmod(0o640)
    assert "holds a secret and others may read it (mode 0640): run chmod 600" in command.refused(
        "whoami", "--profile", "lab"
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "there is no file"), ("\n", "is empty"), ("a\nb\n", "holds more than one line")],
    ids=["missing", "empty", "two lines"],
)
def test_a_file_without_a_secret_is_told(
    command: Any, elsewhere: Any, certificates: Any, tmp_path: Path, content: str | None, sentence: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.touch(0o600)
        file.write_text(content)
    assert sentence in command.refused(*words(elsewhere, certificates, "--secret-file", str(file)))
    assert "standard input is empty" in command(*words(elsewhere, certificates), typed="").stderr


def test_a_wrong_secret_is_told_and_nothing_is_kept(command: Any, elsewhere: Any, certificates: Any) -> None:
    result = command(*words(elsewhere, certificates), typed="wrong")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"client 'ci' could not sign in at {elsewhere.url} (the secret is wrong): give its id and its secret once more "
        "with `forewarn login`\n"
    )
    assert not kept(command).exists()


def test_somebody_without_a_role_has_signed_in_too(command: Any, elsewhere: Any, certificates: Any) -> None:
    elsewhere.will_say(json_reply({"error": {"code": "Forbidden", "message": "no role"}}, status=403))
    result = command(*words(elsewhere, certificates), typed=SECRET)
    assert result.exit_code == 0
    assert "It has no role there yet: `forewarn access grant` gives it one." in result.stdout


def test_at_a_terminal_the_secret_is_asked_for_and_not_shown(data: Path, elsewhere: Any, certificates: Any) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "XDG_CONFIG_HOME": str(data / "config")}
    line = [sys.executable, "-m", "forewarn.cli", *words(elsewhere, certificates)]
    with subprocess.Popen(
        line, env=env, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True
    ) as child:
        os.close(theirs)
        asked = b""
        while b"Secret of ci: " not in asked:
            asked += os.read(ours, 1024)
        os.write(ours, f"{SECRET}\n".encode())
        assert child.stdout is not None
        assert b"kept as profile default" in child.stdout.read()
        assert child.wait(30) == 0
    os.close(ours)


def test_a_server_must_be_named(command: Any) -> None:
    told = command.refused("login", "--client-id", "ci")
    assert told == "no server is named: give its URL with --server https://HOST:PORT"
    assert "is no name for a profile" in command.refused("login", "--client-id", "ci", "--profile", "a b")


def test_profiles_are_listed_without_their_secrets(signed: Any, elsewhere: Any) -> None:
    assert "None is used unless" in signed.good("profiles")
    shown = signed.good("profiles", FOREWARN_PROFILE="lab")
    assert shown.splitlines()[1].split() == ["lab", elsewhere.url, "ci", "kept", "yes"]
    listed = signed.json("profiles")["profiles"]
    assert [(profile["name"], profile["used"]) for profile in listed] == [("lab", False)]
    assert SECRET not in shown + str(listed)


def test_profiles_are_listed_also_where_the_environment_names_another(signed: Any) -> None:
    assert "None is used" in signed.good("profiles", FOREWARN_PROFILE="gone")


def test_a_profile_that_was_for_another_server_is_replaced_and_that_is_said(
    signed: Any, tls: ssl.SSLContext, elsewhere: Any, certificates: Any
) -> None:
    with type(elsewhere)(tls, json_reply({"name": "client ci", "id": "client:ci", "grants": []})) as other:
        result = signed(*words(other, certificates, "--profile", "lab"), typed=SECRET)
        assert result.exit_code == 0
        assert result.stderr == f"profile lab was for {elsewhere.url} until now\n"
        assert other.url in signed.good("whoami", "--profile", "lab")


def test_what_is_no_text_is_told(command: Any, elsewhere: Any, certificates: Any) -> None:
    assert "standard input is no text" in command(*words(elsewhere, certificates), typed=b"\xff\xfe").stderr
    bad = command(*words(elsewhere, certificates), "--client-id", "c\nd", typed=SECRET)
    assert "is no client id: give it as it was told you" in bad.stderr


def test_a_profile_that_is_forgotten_is_gone_from_the_file(signed: Any, elsewhere: Any) -> None:
    assert signed.refused("logout") == "profile 'default' does not exist: give one of lab"
    assert signed.good("logout", "--profile", "lab") == f"Profile lab, for {elsewhere.url}, is forgotten.\n"
    assert SECRET not in kept(signed).read_text()
    assert "There is no profile." in signed.good("profiles")


def test_profiles_that_others_may_read_are_not_used(signed: Any) -> None:
    kept(signed).chmod(0o644)
    assert "holds a secret and others may read it (mode 0644)" in signed.refused("whoami", "--profile", "lab")


@pytest.mark.parametrize("text", ["secret = ", "[lab]\nsecret = 5\n", "lab = 1\n", '[lab]\nserver = "https://x"\n'])
def test_profiles_that_make_no_sense_are_told_without_what_they_hold(signed: Any, text: str) -> None:
    kept(signed).write_text(f"# {SECRET}\n{text}")
    told = signed.refused("profiles")
    assert told.startswith(f"profiles file {str(kept(signed))!r} makes no sense: ")
    assert SECRET not in told


def test_profiles_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    book = ProfileFile(tmp_path / "file" / "profiles.toml")
    with pytest.raises(Rejected, match="cannot be written"):
        book.save("lab", Profile(server="https://x", client_id="ci"))


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@given(name=texts, client_id=texts, secret=texts, ca=texts)
def test_whatever_a_profile_holds_is_read_as_it_was_kept(
    tmp_path_factory: pytest.TempPathFactory, name: str, client_id: str, secret: str, ca: str
) -> None:
    book = ProfileFile(tmp_path_factory.mktemp("book") / "profiles.toml")
    profile = Profile(server="https://x", client_id=client_id or "c", secret=secret, ca=ca)
    other = Profile(server="https://y", client_id="other")
    book.save("first", other)
    book.save(name, profile)
    assert book.read_all() == {"first": other, name: profile}
    book.remove(name)
    assert name == "first" or book.read_all() == {"first": other}
