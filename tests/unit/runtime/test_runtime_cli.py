"""The command line: quick, readable, and clear about what it refuses."""

import os
import subprocess
import sys
import tempfile
from typing import NamedTuple

import pytest
from support.nursery import nursery
from typer.testing import CliRunner

from bottomless.cli import create_app


class Ended(NamedTuple):
    """The program, when it has ended."""

    returncode: int
    stdout: str
    stderr: str


def bottomless(*arguments: str, **settings: str) -> Ended:
    """Run the program, forked from one that is loaded, without any setting of whoever tests."""
    inherited = {name: v for name, v in os.environ.items() if not name.startswith("BOTTOMLESS_")}
    with tempfile.TemporaryFile("w+") as log:
        process = nursery().spawn(arguments, {**inherited, **settings}, log)
        with process.stdout as stdout:
            told = stdout.read()
        code = process.wait(60)
        log.seek(0)
        return Ended(code, told, log.read())


def test_it_says_its_version_and_knows_the_commands_of_the_server() -> None:
    runner = CliRunner()
    assert runner.invoke(create_app(), ["version"]).output.startswith("bottomless ")
    assert "serve" in runner.invoke(create_app(), ["--help"]).output
    shown = runner.invoke(create_app(), ["serve", "--help"]).output
    for word in ("--data-dir", "--port", "--host", "BOTTOMLESS_STORE_URL", "[default: (all in"):
        assert word in shown


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; import bottomless.cli; bottomless.cli.create_app();"
        "print([n for n in ('fastapi','uvicorn','redis','pyarrow','pydantic') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout == b"[]\n"


def test_a_server_without_identity_and_s3_loads_no_library_of_theirs() -> None:
    """Nor the clients of the package that brings Valkey's program; they took 15 MiB together."""
    unused = ("aiobotocore", "botocore", "httpx", "jwt", "pandas", "valkey")
    program = (
        "import sys; from bottomless_server import allinone;"
        "from bottomless_server.coordination import redis;"
        f"print([name for name in {unused!r} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout == b"[]\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_it_does_not_serve_strangers_without_being_told_so(host: str) -> None:
    ran = bottomless("serve", "--host", host)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "BOTTOMLESS_ALLOW_UNAUTHENTICATED=1" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert "Value error" not in ran.stderr


def test_it_serves_strangers_where_it_asks_everybody_who_they_are() -> None:
    ran = bottomless("serve", "reader", "--host", "0.0.0.0", BOTTOMLESS_IDENTITY="true")
    assert "reader needs BOTTOMLESS_STORE_URL" in ran.stderr


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "reader needs BOTTOMLESS_STORE_URL"),
        ({"BOTTOMLESS_STORE_URL": ""}, "reader needs BOTTOMLESS_STORE_URL"),
        ({"BOTTOMLESS_LOG_LEVEL": "loud"}, "the setting BOTTOMLESS_LOG_LEVEL is wrong"),
        (
            {"BOTTOMLESS_STORE_PART_BYTES": "1000"},
            "BOTTOMLESS_STORE_PART_BYTES is wrong: must be at least 5242880",
        ),
        (
            {
                "BOTTOMLESS_STORE_URL": "file:///tmp",
                "BOTTOMLESS_MANIFEST_URL": "unix:///m",
                "BOTTOMLESS_READER_INTERNAL_LISTEN": "nowhere",
            },
            "the internal listener of reader must look like",
        ),
        ({"BOTTOMLESS_INGST_TYPO": "1"}, "there is no setting BOTTOMLESS_INGST_TYPO"),
        ({"BOTTOMLESS_DRAIN_SECONDS": "nan"}, "the setting BOTTOMLESS_DRAIN_SECONDS is wrong"),
        ({"BOTTOMLESS_MANIFEST_URL": "manifest"}, "the setting BOTTOMLESS_MANIFEST_URL is wrong"),
    ],
)
def test_a_service_that_lacks_something_says_what(settings: dict[str, str], sentence: str) -> None:
    ran = bottomless("serve", "reader", "--port", "0", **settings)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert sentence in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("profiles", "sentence"),
    [
        ("local,leaderless", "ingest needs BOTTOMLESS_STORE_URL"),
        ("local", "ingest needs BOTTOMLESS_COORDINATION_URL"),
        ("shared", "the setting BOTTOMLESS_INGEST_PROFILES is wrong"),
    ],
)
def test_ingest_needs_the_object_store_for_leaderless_streams(profiles: str, sentence: str) -> None:
    ran = bottomless("serve", "ingest", "--port", "0", BOTTOMLESS_INGEST_PROFILES=profiles)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert sentence in ran.stderr


def test_an_unknown_service_is_a_wrong_argument() -> None:
    assert bottomless("serve", "everything").returncode == 2
