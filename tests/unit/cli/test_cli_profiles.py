"""Profiles and tokens, by what reaches a server; and that no secret is shown."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from support.command_line import app as program
from support.stand_in import OURS, Answer, Asked, StandIn, standing_in
from typer.testing import CliRunner, Result

WHO = {"principal": "key:1", "authenticated": True, "tenant": "t", "scopes": [], "expires_at": None}
SECRET = "sk_secret-of-somebody"


def answer(_: Asked) -> Answer:
    return 200, orjson.dumps(WHO), OURS


@pytest.fixture
def server() -> Iterator[StandIn]:
    with standing_in(answer) as stand_in:
        yield stand_in


@pytest.fixture
def config(tmp_path: Path) -> Path:
    directory = tmp_path / "config/bottomless"
    directory.mkdir(parents=True)
    return directory / "config.toml"


def write(file: Path, text: str, mode: int = 0o600) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


def run(*words: str) -> Result:
    return CliRunner().invoke(program(), list(words))


def sent(server: StandIn, *words: str) -> str | None:
    """The credential that reached the server."""
    result = run(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert SECRET not in result.stdout
    return server.asked[-1].authorization


def refused(*words: str) -> str:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert SECRET not in result.stderr
    return " ".join(result.stderr.replace("│", " ").split())


def test_without_a_profile_no_token_is_sent(server: StandIn) -> None:
    assert sent(server, "--url", server.url, "whoami") is None


def test_the_default_profile_needs_not_be_named(server: StandIn, config: Path) -> None:
    write(config, f'[default]\nurl = "{server.url}"\ntoken = "{SECRET}"\n')
    assert sent(server, "whoami") == f"Bearer {SECRET}"


def test_a_profile_is_named_by_option_or_environment(
    server: StandIn, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(config.parent / "a.key", f"{SECRET}\n")
    write(
        config,
        f'[default]\nurl = "http://127.0.0.1:1"\n[a]\nurl = "{server.url}"\ntoken_file = "a.key"\n',
    )
    assert sent(server, "--profile", "a", "whoami") == f"Bearer {SECRET}"
    monkeypatch.setenv("BOTTOMLESS_PROFILE", "a")
    assert sent(server, "whoami") == f"Bearer {SECRET}"


def test_the_environment_beats_a_profile_unless_an_option_names_it(
    server: StandIn, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(config, f'[default]\nurl = "{server.url}"\ntoken = "of-the-profile"\n')
    monkeypatch.setenv("BOTTOMLESS_TOKEN", SECRET)
    assert sent(server, "whoami") == f"Bearer {SECRET}"
    assert sent(server, "--profile", "default", "whoami") == "Bearer of-the-profile"
    monkeypatch.setenv("BOTTOMLESS_URL", "http://127.0.0.1:1")
    assert run("whoami").exit_code == 5
    assert sent(server, "--profile", "default", "whoami") == "Bearer of-the-profile"


def test_an_option_beats_the_environment(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTTOMLESS_TOKEN", "of-the-environment")
    monkeypatch.setenv("BOTTOMLESS_URL", "http://127.0.0.1:1")
    file = str(write(tmp_path / "key", SECRET))
    assert sent(server, "--url", server.url, "--token-file", file, "whoami") == f"Bearer {SECRET}"


def test_the_token_of_a_profile_is_not_sent_to_another_server(
    server: StandIn, config: Path
) -> None:
    write(config, f'[default]\nurl = "http://127.0.0.1:1"\ntoken = "{SECRET}"\n')
    assert sent(server, "--url", server.url, "whoami") is None


def test_a_token_file_of_the_environment_is_read(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTTOMLESS_TOKEN_FILE", str(write(tmp_path / "key", SECRET)))
    assert sent(server, "--url", server.url, "whoami") == f"Bearer {SECRET}"
    monkeypatch.setenv("BOTTOMLESS_TOKEN", SECRET)
    assert "are both set" in refused("--url", server.url, "whoami")


def test_a_token_may_come_through_a_pipe(server: StandIn, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o644)
    writing = threading.Thread(target=pipe.write_text, args=(f"{SECRET}\n",), daemon=True)
    writing.start()
    said = sent(server, "--url", server.url, "--token-file", str(pipe), "whoami")
    writing.join()
    assert said == f"Bearer {SECRET}"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_file_with_a_token_that_others_can_read_is_refused(
    config: Path, tmp_path: Path, mode: int
) -> None:
    key = write(tmp_path / "key", SECRET, mode)
    assert "chmod 600" in refused("--token-file", str(key), "whoami")
    write(config, f'[default]\ntoken = "{SECRET}"\n', mode)
    assert "chmod 600" in refused("whoami")


def test_a_profile_without_a_token_may_be_read_by_all(server: StandIn, config: Path) -> None:
    write(config, f'[default]\nurl = "{server.url}"\n', 0o644)
    assert sent(server, "whoami") is None


@pytest.mark.parametrize("text", ["", "two words", "two\nlines", "umlaut-ä", "x" * 9000])
def test_what_can_be_no_token_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    said = refused("--token-file", str(write(tmp_path / "key", text)), "whoami")
    assert "no token" in said
    assert "two" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("default = 3", "is not a table"),
        ("[default]\nurl = 3", "is not a table"),
        (f'[default]\ntoken = "{SECRET}"\ntoken_file = "f"', "both token and token_file"),
        (f'[default]\ntokken = "{SECRET}"', "has tokken, and takes only url"),
        (f'[default]\ntoken = "{SECRET}', "is not TOML"),
        ('[default]\nurl = "localhost"', "the profile default says it"),
        ('[default]\nca_file = "nothing.pem"', "nothing.pem is not a file"),
    ],
)
def test_a_profile_that_cannot_be_right_is_wrong_usage(config: Path, text: str, said: str) -> None:
    write(config, text)
    assert said in refused("whoami")
    # Help, and what talks to no server, do not need it.
    assert run("whoami", "--help").exit_code == 0
    assert run("version").exit_code == 0


def test_a_profile_that_is_not_there_is_told_with_those_that_are(config: Path) -> None:
    write(config, '[staging]\nurl = "http://h"\n[live]\nurl = "http://h"\n')
    assert "there are: live, staging" in refused("--profile", "stagging", "whoami")


def test_who_takes_a_profile_for_the_kind_of_stream_hears_of_the_right_option(config: Path) -> None:
    write(config, '[staging]\nurl = "http://h"\n')
    assert "made with --leaderless" in refused("--profile", "leaderless", "whoami")
    assert "--leaderless" not in refused("--profile", "stagging", "whoami")
