"""Which server and which token: options, environment and profiles, and what a token is not shown to."""

from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.command_line import app as program
from typer.testing import CliRunner

from bottomless.cli.connection import URL_DEFAULT, Choice, Layer, choose, fault_of, place_of

OPTIONS = Layer("options", url="http://options")
ENVIRONMENT = Layer("environment", url="http://environment", token="of the environment")
PROFILE = Layer("profile p", url="http://profile", token="of the profile", is_profile=True)


def secret(choice: Choice) -> str | None:
    return choice.credential.token if choice.credential else None


def test_where_nobody_says_anything_it_is_this_machine() -> None:
    choice = choose([Layer("options"), Layer("environment")])
    assert (choice.url, choice.url_source) == (URL_DEFAULT, "default")
    assert (choice.credential, choice.ca_file, choice.withheld) == (None, None, None)


def test_the_first_that_says_a_thing_is_believed() -> None:
    choice = choose([OPTIONS, ENVIRONMENT, PROFILE])
    assert (choice.url, choice.url_source) == ("http://options", "options")
    assert secret(choice) == "of the environment"
    assert choose([Layer("options"), PROFILE, ENVIRONMENT]).url == "http://profile"


@pytest.mark.parametrize("strongest", [OPTIONS, Layer("environment", url="http://elsewhere")])
def test_the_token_of_a_profile_is_for_its_own_url_alone(strongest: Layer) -> None:
    choice = choose([strongest, PROFILE])
    assert (choice.credential, choice.withheld) == (None, PROFILE)


def test_the_same_url_with_a_slash_is_the_same() -> None:
    choice = choose([Layer("options", url="http://profile/"), PROFILE])
    assert (secret(choice), choice.withheld) == ("of the profile", None)


def test_a_profile_without_a_url_is_for_whichever_server_is_named() -> None:
    bare = Layer("profile p", token_file=Path("f"), is_profile=True)
    assert choose([OPTIONS, bare]).credential is bare


def test_a_token_is_not_shown_by_its_layer() -> None:
    assert "of the profile" not in repr(PROFILE)
    assert "of the profile" not in repr(choose([PROFILE]))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8080", "http://"),
        ("ftp://host", "http://"),
        ("http://host:port", "not a url"),
        ("http://[::1", "not a url"),
        ("http://", "no host"),
        ("http://user:secret@host", "no user"),
        ("http://host?x=secret", "no ?"),
        ("http://host/#secret", "no #"),
        ("http://host/v1", "leave /v1 away"),
        ("http://host/prefix/v1/", "leave /v1 away"),
    ],
)
def test_what_is_no_url_of_a_server_is_told_without_repeating_it(url: str, said: str) -> None:
    fault = fault_of(url)
    assert fault is not None
    assert said in fault
    assert "secret" not in fault


@pytest.mark.parametrize(
    "url", ["http://h", "https://h:1/", "http://[::1]:8080", "http://h/prefix"]
)
def test_the_url_of_a_server_is_taken(url: str) -> None:
    assert fault_of(url) is None


def test_a_place_is_host_and_port() -> None:
    assert place_of("https://host:8443/prefix") == "host:8443"


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "URL", "ls"),
        ("ls", "--url", "URL"),
        ("ls", "--url=URL"),
        ("--url", "http://127.0.0.1:1", "ls", "--url", "URL"),
        ("consumers", "ls", "either", "--url", "URL"),
        ("consumers", "--url", "URL", "ls", "either"),
    ],
    ids=" ".join,
)
def test_options_of_the_program_are_taken_on_either_side_of_a_command(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    cli.ok("create", "either")
    result = CliRunner().invoke(program(), [word.replace("URL", cli.url) for word in words])
    assert (result.exit_code, result.stderr) == (0, "")


def test_what_is_wrong_with_an_option_after_a_command_is_said_by_its_name() -> None:
    result = CliRunner().invoke(program(), ["ls", "--url", "localhost:8080"])
    assert result.exit_code == 2
    assert "--url" in result.stderr


def test_a_command_of_another_distribution_takes_its_own_options_only() -> None:
    result = CliRunner().invoke(program(), ["serve", "--profile", "x"])
    assert result.exit_code == 2
    assert "No such option" in result.stderr


def test_the_version_is_told_by_command_and_by_option() -> None:
    told = [CliRunner().invoke(program(), [word]).stdout for word in ("version", "--version")]
    assert told[0] == told[1]
    assert told[0].startswith("bottomless ")
