"""Signing in to remote services, and the stored profiles."""

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


def arguments(server: Any, certificates: Any, *more: str) -> list[str]:
    return ["login", "--server", server.url, "--ca", str(certificates.ca.certificate), "--client-id", "ci", *more]


def test_a_secret_from_standard_input_is_stored_in_a_private_file(
    command: Any, remote_service: Any, certificates: Any
) -> None:
    result = command(*arguments(remote_service, certificates), typed=f"{SECRET}\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"Signed in to {remote_service.url} as client ci; saved as profile default.\n")
    assert "forewarn --profile default fleet show" in result.stdout
    assert SECRET not in result.output
    assert (mode(kept(command)), mode(kept(command).parent)) == (0o600, 0o700)
    assert tomllib.loads(kept(command).read_text())["default"]["secret"] == SECRET


def test_a_profile_refers_to_a_secret_file_and_does_not_copy_it(
    command: Any, remote_service: Any, certificates: Any, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(f"{SECRET}\n")
    command.good(*arguments(remote_service, certificates, "--secret-file", str(file), "--profile", "lab"))
    assert SECRET not in kept(command).read_text()
    assert "client ci" in command.good("whoami", "--profile", "lab")
    file.chmod(0o640)
    assert "holds a secret and others may read it (mode 0640): run chmod 600" in command.refused(
        "whoami", "--profile", "lab"
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "does not exist: check its name"), ("\n", "is empty"), ("a\nb\n", "holds more than one line")],
    ids=["missing", "empty", "two lines"],
)
def test_a_file_without_a_secret_is_refused(
    command: Any, remote_service: Any, certificates: Any, tmp_path: Path, content: str | None, sentence: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.touch(0o600)
        file.write_text(content)
    assert sentence in command.refused(*arguments(remote_service, certificates, "--secret-file", str(file)))
    assert "standard input is empty" in command(*arguments(remote_service, certificates), typed="").stderr


def test_a_wrong_secret_is_refused_and_nothing_is_stored(command: Any, remote_service: Any, certificates: Any) -> None:
    result = command(*arguments(remote_service, certificates), typed="wrong")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"client 'ci' could not sign in at {remote_service.url} (the secret is wrong): check its id and secret, "
        "and run `forewarn login` again\n"
    )
    assert not kept(command).exists()


def test_a_client_without_a_role_can_sign_in(command: Any, remote_service: Any, certificates: Any) -> None:
    remote_service.set_replies(json_reply({"id": "ci", "name": "client ci", "grants": []}))
    result = command(*arguments(remote_service, certificates), typed=SECRET)
    assert result.exit_code == 0
    assert "It has no role there yet: grant one with `forewarn access grant`." in result.stdout


def test_a_sign_in_that_a_server_forbids_is_not_stored(command: Any, remote_service: Any, certificates: Any) -> None:
    """A service tells each signed-in client who it is; so it was a proxy that refused."""
    remote_service.set_replies(json_reply({"error": {"code": "Forbidden", "message": "not from here"}}, status=403))
    result = command(*arguments(remote_service, certificates), typed=SECRET)
    assert (result.exit_code, result.stderr) == (2, "not from here\n")
    assert not kept(command).exists()


def test_a_terminal_prompts_for_the_secret_and_does_not_echo_it(
    data: Path, remote_service: Any, certificates: Any
) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "XDG_CONFIG_HOME": str(data / "config")}
    line = [sys.executable, "-m", "forewarn.cli", *arguments(remote_service, certificates)]
    with subprocess.Popen(
        line, env=env, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True
    ) as child:
        os.close(theirs)
        asked = b""
        while b"Secret of ci: " not in asked:
            asked += os.read(ours, 1024)
        os.write(ours, f"{SECRET}\n".encode())
        assert child.stdout is not None
        assert b"saved as profile default" in child.stdout.read()
        assert child.wait(60) == 0
    os.close(ours)


def test_login_needs_a_server(command: Any) -> None:
    message = command.refused("login", "--client-id", "ci")
    assert message == "no server is given: give its URL with --server https://HOST:PORT"
    assert "is not a valid profile name" in command.refused("login", "--client-id", "ci", "--profile", "a b")


def test_profiles_are_listed_without_their_secrets(signed_in: Any, remote_service: Any) -> None:
    assert "None is in use: choose one" in signed_in.good("profiles")
    shown = signed_in.good("profiles", FOREWARN_PROFILE="lab")
    assert shown.splitlines()[1].split() == ["lab", remote_service.url, "ci", "stored", "yes"]
    listed = signed_in.json("profiles")["profiles"]
    assert [(profile["name"], profile["used"]) for profile in listed] == [("lab", False)]
    assert SECRET not in shown + str(listed)


def test_profiles_are_listed_even_if_the_environment_names_an_unknown_one(signed_in: Any) -> None:
    assert "None is in use" in signed_in.good("profiles", FOREWARN_PROFILE="gone")


def test_login_says_that_it_replaced_a_profile_for_another_server(
    signed_in: Any, tls: ssl.SSLContext, remote_service: Any, certificates: Any
) -> None:
    with type(remote_service)(tls, json_reply({"name": "client ci", "id": "client:ci", "grants": []})) as other:
        result = signed_in(*arguments(other, certificates, "--profile", "lab"), typed=SECRET)
        assert result.exit_code == 0
        assert result.stderr == f"profile lab was for {remote_service.url} before\n"
        assert other.url in signed_in.good("whoami", "--profile", "lab")


def test_input_that_is_not_text_is_refused(command: Any, remote_service: Any, certificates: Any) -> None:
    assert "standard input is not text" in command(*arguments(remote_service, certificates), typed=b"\xff\xfe").stderr
    bad = command(*arguments(remote_service, certificates), "--client-id", "c\nd", typed=SECRET)
    assert "is not a client id: give the one that you received" in bad.stderr


def test_logout_removes_the_profile_from_the_file(signed_in: Any, remote_service: Any) -> None:
    assert signed_in.refused("logout") == "profile 'default' does not exist: give one of lab"
    assert signed_in.good("logout", "--profile", "lab") == f"Profile lab, for {remote_service.url}, is deleted.\n"
    assert SECRET not in kept(signed_in).read_text()
    assert "There are no profiles." in signed_in.good("profiles")


def test_profiles_that_other_users_may_read_are_refused(signed_in: Any) -> None:
    kept(signed_in).chmod(0o644)
    assert "holds a secret and others may read it (mode 0644)" in signed_in.refused("whoami", "--profile", "lab")


@pytest.mark.parametrize("text", ["secret = ", "[lab]\nsecret = 5\n", "lab = 1\n", '[lab]\nserver = "https://x"\n'])
def test_invalid_profiles_are_refused_without_quoting_them(signed_in: Any, text: str) -> None:
    kept(signed_in).write_text(f"# {SECRET}\n{text}")
    message = signed_in.refused("profiles")
    assert message.startswith(f"profiles file {str(kept(signed_in))!r} cannot be parsed: ")
    assert SECRET not in message


def test_profiles_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    profile_file = ProfileFile(tmp_path / "file" / "profiles.toml")
    with pytest.raises(Rejected, match="cannot be written"):
        profile_file.save("lab", Profile(server="https://x", client_id="ci"))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(name=texts, client_id=texts, secret=texts, ca=texts)
def test_any_profile_is_read_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, client_id: str, secret: str, ca: str
) -> None:
    profile_file = ProfileFile(tmp_path_factory.mktemp("profile_file") / "profiles.toml")
    profile = Profile(server="https://x", client_id=client_id or "c", secret=secret, ca=ca)
    other = Profile(server="https://y", client_id="other")
    profile_file.save("first", other)
    profile_file.save(name, profile)
    assert profile_file.read_all() == {"first": other, name: profile}
    profile_file.remove(name)
    assert name == "first" or profile_file.read_all() == {"first": other}
